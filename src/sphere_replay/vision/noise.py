"""Label noise as data: clean labels in, noisy labels out, every choice from a given generator.

Corruption sees the whole training set with its original class ids, before anything is split into
tasks. Noise never touches test labels.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import torch
from torch import Tensor


class NoiseKind(StrEnum):
    """Which labels are replaced, and by what."""

    SYMMETRIC = "symmetric"
    """Exactly round(rho n_c) labels of each class c, each uniform over the other classes."""
    SYMMETRIC_BERNOULLI = "symmetric-bernoulli"
    """Each label with probability rho on its own, uniform over the other classes."""
    ASYMMETRIC = "asymmetric"
    """Exactly round(rho n_c) labels of each confusable class, always to its look-alike."""


_DIGIT_LOOKALIKES = MappingProxyType({7: 1, 2: 7, 5: 6, 6: 5, 3: 8})

LOOKALIKES: Mapping[str, Mapping[int, int]] = MappingProxyType(
    {
        # Truck to automobile, bird to airplane, cat and dog for each other, deer to horse.
        "cifar10": MappingProxyType({9: 1, 2: 0, 3: 5, 5: 3, 4: 7}),
        # The next class inside each block of five consecutive ids: the common convention. The ids
        # are alphabetical, so these blocks are not the dataset's superclasses.
        "cifar100": MappingProxyType({c: c - c % 5 + (c + 1) % 5 for c in range(100)}),
        # Our choice, after the shapes that are confused most in handwriting.
        "mnist": _DIGIT_LOOKALIKES,
        "digits": _DIGIT_LOOKALIKES,
    }
)
"""For asymmetric noise: the class each confusable class is taken for, by dataset."""


def corrupt(
    labels: Tensor,
    rate: float,
    num_classes: int,
    generator: torch.Generator,
    kind: NoiseKind | str = NoiseKind.SYMMETRIC,
    lookalikes: Mapping[int, int] | None = None,
) -> Tensor:
    """Noisy labels `[n]` at rate rho; `labels` stay as they are. `lookalikes`: asymmetric only."""
    kind = NoiseKind(kind)
    _check(labels, rate, num_classes)
    noisy = labels.clone()
    if kind is NoiseKind.ASYMMETRIC:
        taken_for = _targets(lookalikes, num_classes)
        chosen = _exact_share(labels, rate, num_classes, generator)
        noisy[chosen] = taken_for[labels[chosen]]
        return noisy
    if kind is NoiseKind.SYMMETRIC:
        chosen = _exact_share(labels, rate, num_classes, generator)
    else:
        drawn = torch.rand(len(labels), generator=generator, dtype=torch.float64) < rate
        chosen = drawn.nonzero().flatten()
    # A step of 1..C-1 around the circle of classes reaches every other class, never its own.
    steps = torch.randint(1, num_classes, (len(chosen),), generator=generator)
    noisy[chosen] = (labels[chosen] + steps) % num_classes
    return noisy


def _targets(lookalikes: Mapping[int, int] | None, num_classes: int) -> Tensor:
    """What each class is taken for, `[C]`; itself if it has no look-alike."""
    if lookalikes is None:
        raise ValueError(
            "asymmetric noise needs a map from class to look-alike; there is one for "
            f"{', '.join(LOOKALIKES)}; pass your own for other datasets, or use symmetric noise"
        )
    targets = torch.arange(num_classes)
    for source, lookalike in lookalikes.items():
        if source == lookalike or not {source, lookalike} <= set(range(num_classes)):
            raise ValueError(
                f"look-alike {source} -> {lookalike} must join two different classes in "
                f"0..{num_classes - 1}"
            )
        targets[source] = lookalike
    return targets


def _check(labels: Tensor, rate: float, num_classes: int) -> None:
    if not 0 <= rate < 1:
        raise ValueError(
            f"noise must lie in [0, 1), got {rate}; it is a fraction: 0.4 means 40% of the labels"
        )
    if num_classes < 2:
        raise ValueError(f"noise needs at least two classes, got {num_classes}")
    if labels.ndim != 1 or labels.dtype != torch.int64:
        raise ValueError(
            f"labels must be int64 of shape [n], got {labels.dtype} of {list(labels.shape)}"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise ValueError(
            f"labels must lie in 0..{num_classes - 1}, got {int(labels.min())}..{int(labels.max())}"
        )


def _exact_share(
    labels: Tensor, rate: float, num_classes: int, generator: torch.Generator
) -> Tensor:
    """Indices of round(rho n_c) examples of each class c, chosen uniformly."""
    shares = []
    for label in range(num_classes):
        members = (labels == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)
        shares.append(members[order[: round(rate * len(members))]])
    return torch.cat(shares)
