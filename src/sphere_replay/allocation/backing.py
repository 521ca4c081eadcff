"""Backing, beyond the paper: how far the neighbourhood of a stored label shares it.

With the kernel K = exp(-C/eps_s) of the consensus, every other memory votes for its own label:

    votes_ic  = Σ_{j≠i} K_ij 1[y_j = c]
    backing_i = votes_i,y_i / max_c votes_ic

It is 1 where the label has the most votes and 0 where no neighbour has it. A memory without any
neighbour in reach is backed: nobody speaks against it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.geometry import Geometry, sums_by_class
from sphere_replay.numeric import accumulation_dtype
from sphere_replay.validation import Choice

_VOTES_HELD, _CLASSES_HELD = 1 << 22, 16
"""Votes `[m, classes]` at a time, and the fewest classes; more take further passes."""

_MANY_PASSES = 2
"""More than so many take longer than one over all pairs, each of them twice."""

_TIE = 1 - 1e-6
"""Votes this close to the most are as many: the difference is the float32 kernel's."""


class Votes(Choice):
    """How votes are counted."""

    PLAIN = "plain"
    """Every neighbour has the weight that the kernel gives it."""
    BALANCED = "balanced"
    """A class's votes over its share of the other memories, so that a frequent one has no lead."""


class Strength(Choice):
    """How strongly backing counts, given the recipe's `agreement` a."""

    FIXED = "fixed"
    """a, whatever the memory looks like."""
    NOISE = "noise"
    """a times `noise_strength` of the label noise that the memory shows."""


@dataclass(frozen=True)
class Backing:
    """What neighbours say about labels."""

    shares: Tensor
    """backing_i, `[m]` in [0, 1]."""
    label_noise: float
    """The share of outvoted labels over that of labels dealt out at random, in [0, 1]."""


def back_labels(
    geometry: Geometry, eps: float, labels: Tensor, votes: Votes = Votes.PLAIN
) -> Backing:
    """Let the neighbours at kernel scale eps vote on each of the labels, int64 `[m]`.

    A label is outvoted if another one has more votes. `label_noise` divides the share of outvoted
    labels by the share to expect if each were drawn anew from all of them: it is 1 minus the
    chance-corrected agreement (Cohen's kappa) of labels and neighbourhoods, and about the share of
    labels that were replaced at random, as far as neighbourhoods can tell. Memories without
    neighbours are left out.
    """
    classes, belongs, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    width = max(_CLASSES_HELD, _VOTES_HELD // len(labels))
    rows = None
    if len(classes) > _MANY_PASSES * width:
        rows = sums_by_class(geometry, eps, belongs, len(classes))
    if rows is None:
        tally = _tally_of_classes(geometry, eps, belongs, counts, width, votes)
    else:
        tally = _tally_of_rows(rows, belongs, counts, votes)
    heard = tally.most > 0
    shares = _of_the_most(tally.own, tally.most)
    outvoted = float((tally.own < _TIE * tally.most)[heard].sum())
    expected = float((1 - tally.by_chance)[heard].sum())
    return Backing(shares, min(1.0, outvoted / expected) if expected > 0 else 0.0)


class _Tally(NamedTuple):
    """What votes come to, each `[m]`."""

    own: Tensor
    """Votes for a memory's own label."""
    most: Tensor
    """Votes for the label that has most."""
    by_chance: Tensor
    """The share of all labels that would not be outvoted here, were they this memory's."""


def _tally_of_classes(
    geometry: Geometry, eps: float, belongs: Tensor, counts: Tensor, width: int, votes: Votes
) -> _Tally:
    """Of all memories, `width` classes at a time."""
    precision = accumulation_dtype(geometry.device)
    own, most, by_chance = torch.zeros(3, len(belongs), dtype=precision, device=belongs.device)
    for block in torch.split(torch.arange(len(counts), device=belongs.device), width):
        members = belongs[:, None] == block
        cast = votes_cast(geometry, eps, members, counts[block], votes)
        own += (cast * members).sum(dim=1)
        leading = cast.amax(dim=1)
        frequency = counts[block].to(precision) / len(belongs)
        unopposed = (cast >= _TIE * leading[:, None]).to(precision) @ frequency
        before, most = most, torch.maximum(most, leading)
        by_chance = by_chance * (before >= _TIE * most) + unopposed * (leading >= _TIE * most)
    return _Tally(own, most, by_chance)


def _tally_of_rows(
    rows: Iterable[tuple[Tensor, Tensor]], belongs: Tensor, counts: Tensor, votes: Votes
) -> _Tally:
    """Of all classes, some memories at a time."""
    precision = accumulation_dtype(belongs.device)
    own, most, by_chance = torch.zeros(3, len(belongs), dtype=precision, device=belongs.device)
    frequency = counts.to(precision) / len(belongs)
    for who, sums in rows:
        label = belongs[who]
        cast = _counted(sums.to(precision), label, counts, votes)
        own[who] = cast.gather(1, label[:, None])[:, 0]
        most[who] = leading = cast.amax(dim=1)
        by_chance[who] = (cast >= _TIE * leading[:, None]).to(precision) @ frequency
    return _Tally(own, most, by_chance)


def _counted(cast: Tensor, own: Tensor, counts: Tensor, votes: Votes) -> Tensor:
    """Votes for all classes `[n, c]` as they count, of memories with labels `[n]` of their own."""
    if votes is Votes.PLAIN:
        return cast
    others = counts.to(cast.dtype).expand_as(cast).clone()
    others[torch.arange(len(own), device=own.device), own] -= 1
    return cast / others.clamp_(min=1)


def votes_cast(
    geometry: Geometry, eps: float, members: Tensor, counts: Tensor, votes: Votes
) -> Tensor:
    """What the others of each memory give to some classes, `[m, c]`.

    Args:
        geometry: Of the memories.
        eps: Kernel scale.
        members: Whether each memory has each of the labels, `[m, c]`.
        counts: How many memories have it, `[c]`.
        votes: How they are counted.
    """
    precision = accumulation_dtype(geometry.device)
    cast = geometry.apply_kernel(eps, members.to(precision), others_only=True)
    if votes is Votes.BALANCED:
        cast = cast / (counts - members.long()).clamp(min=1)
    return cast


def shares_of_votes(cast: Tensor, own: Tensor, counts: Tensor, votes: Votes) -> Tensor:
    """backing_i `[n]` of some memories, from what others give to each class `[n, c]`.

    Args:
        cast: Rows of K without the memory itself, summed over the members of each class.
        own: Class of each of the memories, `[n]`.
        counts: How many memories each class has, `[c]`.
        votes: How they are counted.
    """
    cast = _counted(cast, own, counts, votes)
    return _of_the_most(cast.gather(1, own[:, None])[:, 0], cast.amax(dim=1))


def _of_the_most(own: Tensor, most: Tensor) -> Tensor:
    """A label's share of the most votes; 1 where nobody was heard."""
    return torch.where(most > 0, own / most.masked_fill(most <= 0, 1.0), 1.0)


def noise_strength(label_noise: float) -> float:
    """4 n (1 - n): how much there is to mend, n, times how far neighbourhoods can tell, 1 - n.

    0 for clean labels, which need no backing, and for random ones, which have none; 1 halfway.
    """
    return 4 * label_noise * (1 - label_noise)


def permuted_within_classes(values: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """The same values `[m]`, dealt out anew among the memories of each label."""
    shuffle = torch.randperm(len(values), generator=generator, device=generator.device)
    shuffle = shuffle.to(labels.device)
    takers = labels.argsort(stable=True)
    givers = shuffle[labels[shuffle].argsort(stable=True)]
    return torch.empty_like(values).index_copy(0, takers, values[givers])


def check_labels(labels: Tensor, size: int) -> Tensor:
    """One class number per memory."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a torch.Tensor, got {type(labels).__name__}")
    if labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64 class numbers, got {labels.dtype}; use .long()")
    if labels.ndim != 1:
        raise ValueError(
            f"labels must have shape [m], one class number per memory, got {list(labels.shape)}; "
            "use .flatten() for columns of one, .argmax(dim=1) for one-hot rows"
        )
    if len(labels) != size:
        raise ValueError(f"{size} increments but {len(labels)} labels: both need one per memory")
    return labels
