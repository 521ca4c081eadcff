"""Loss increments δ_i = ℓ(z_i; θ^v) - ℓ(z_i; θ) of stored examples: two forwards, nothing more.

One forward, and no virtual step, where only losses and features are wanted.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from sphere_replay.geometry import Kept
from sphere_replay.geometry.threads import slices
from sphere_replay.scoring.folding import FOLDED_CHUNK, FoldedForward, can_fold
from sphere_replay.scoring.restoring import (
    forget_casts,
    modules_restored,
    random_state_restored,
)
from sphere_replay.scoring.sharding import resharded
from sphere_replay.scoring.virtual import VirtualStep
from sphere_replay.validation import check_features

Forward = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inputs `[n, ...]` to features `[n, d]` and logits `[n, C]`."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits `[n, C]` and targets `[n, ...]` to one loss per example `[n]`."""
BatchT = TypeVar("BatchT")
"""Whatever a caller's `evaluate` takes."""
Evaluated = tuple[Tensor | None, Tensor]
"""Features `[n, d]`, where they are wanted, and losses `[n]` of a batch."""
DEFAULT_CHUNK = 512
"""Examples at a time in eval mode unless the forward has a size of its own."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What an allocation needs to know of m stored examples; detached from any graph."""

    increments: Tensor
    """δ `[m]`: loss after the virtual step minus loss before; zero where it is not known."""
    losses: Tensor
    """`[m]`: loss before the virtual step."""
    features: Tensor | None = None
    """h `[m, d]`: representation before the virtual step; None where nobody asked for it."""
    labels: Tensor | None = None
    """int64 `[m]`: stored class numbers, where the targets are such."""
    landmarks: Tensor | None = None
    """int64 `[n]`: the examples whose increments are known, if not all are."""
    grouping: Kept | None = None
    """How features lay when they were last looked at; it saves time where most are the same."""
    passes: float = 2
    """Forward passes that an example took, on average."""
    reused: float | None = None
    """Share of the examples that were not passed at all, for training had just done it; None where
    that does not happen."""

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def known_increments(self) -> Tensor:
        """Those of the landmarks, or of all."""
        return self.increments if self.landmarks is None else self.increments[self.landmarks]


class NonFiniteError(ValueError):
    """A scored loss is not a number: the model, or the step it would take, has diverged."""


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def class_numbers(targets: Tensor) -> Tensor | None:
    """Targets that are one class number each, as int64 `[n]`; None if they are something else."""
    return targets.long() if targets.ndim == 1 and targets.dtype in _INTEGERS else None


def cross_entropy_per_example(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy `[n]`, in float32 at least: half precision would drown small increments."""
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = targets.long() if targets.dtype in _INTEGERS else targets
    if precise.is_cpu and precise.shape[1] < 16 and targets.ndim == 1:
        # Rows shorter than a vector register: run along the examples, not along the classes.
        return functional.nll_loss(precise.T.log_softmax(0).T, targets, reduction="none")
    return functional.cross_entropy(precise, targets, reduction="none")


def score(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    lr: float | None,
    loss: Loss = cross_entropy_per_example,
    forward: Forward | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    grad_scale: float = 1.0,
    mode: Literal["eval", "train"] = "eval",
    chunk: int | None = None,
    prepare: Callable[[Tensor], Tensor] | None = None,
    increments: bool = True,
    rows: Tensor | None = None,
) -> Scores:
    """How the loss of each stored example would change after the next update.

    The update is `virtual_step(model, lr, optimizer=optimizer)` along the gradients already in
    `model`. Losses before, and features, come from one forward over the set, losses after from a
    second one. The model and the random state are left exactly as they were; both forwards see the
    same random numbers, so that dropout is not mistaken for an increment.

    Args:
        model: The model, with the stream gradient in its parameters' `.grad`.
        inputs: Stored inputs `[m, ...]`, ready for the model unless `prepare` makes them so.
        targets: Stored targets `[m, ...]`.
        lr: Length of the virtual step; None for the optimizer's own.
        loss: Per-example loss; cross entropy unless given.
        forward: How to get features and logits; `model.forward_features` unless given. A network
            that declares `conv_bn_pairs()` is run with its batch norms folded where that is exact:
            in eval mode, in single or double precision, outside autocast.
        optimizer: Takes the virtual step instead of plain SGD.
        grad_scale: The factor of a gradient scaler that is still in the gradients.
        mode: Mode of the model in both forwards. `train` takes batch-norm statistics from the
            scored examples, as the first interference-based retrieval did; increments then depend
            on which examples share a chunk.
        chunk: Examples at a time. None: a size that suits the forward in eval mode, the whole set
            at once in train mode.
        prepare: Turns a chunk of stored inputs into model inputs (to float, to the device).
        increments: False for losses and features alone: one forward, no step, and no gradient
            needed.
        rows: Which of them to score, int64 `[n]`; all unless given. They are copied a chunk at a
            time: a large memory is never copied whole, and a forward that writes into its input
            does not write into the memory.

    Raises:
        RuntimeError: if no parameter has a gradient to follow.
        ValueError: for inputs that do not match, or a loss or feature that is not finite, naming
            the slot.
    """
    count, numbers = _checked_count(inputs, targets, rows, mode, chunk), rows
    step = VirtualStep(model, lr, optimizer, grad_scale) if increments else None
    forward = forward or _own_forward(model, mode, _device(model, step))
    refresh = forward.refresh if isinstance(forward, FoldedForward) else None
    if chunk is None and mode == "train":
        chunk = count
    elif chunk is None:
        chunk = DEFAULT_CHUNK if refresh is None else FOLDED_CHUNK

    wanted = targets if rows is None else targets[rows]
    if chunk >= count:  # one chunk is held for both passes
        inputs, rows = inputs if rows is None else inputs[rows], None
        inputs, prepare = inputs if prepare is None else prepare(inputs), None
    places = slices(count, chunk)
    held: Sequence[slice | Tensor] = places if rows is None else torch.split(rows, chunk)

    def evaluate(batch: tuple[slice | Tensor, slice]) -> tuple[Tensor, Tensor]:
        where, place = batch
        stored = inputs[where]
        features, logits = forward(stored if prepare is None else prepare(stored))
        losses = loss(logits, wanted[place].to(logits.device))
        _check_outputs(features, losses, place.stop - place.start)
        return features, losses

    batches = list(zip(held, places, strict=True))
    scores = _score(model, step, batches, evaluate, mode, refresh, numbers)
    return replace(scores, labels=class_numbers(wanted))


def score_batches(
    model: nn.Module,
    batches: Sequence[BatchT],
    evaluate: Callable[[BatchT], Evaluated],
    *,
    lr: float | None,
    optimizer: torch.optim.Optimizer | None = None,
    grad_scale: float = 1.0,
    mode: Literal["eval", "train"] = "eval",
    increments: bool = True,
) -> Scores:
    """`score` for inputs that are no plain tensor, such as sentences of different lengths.

    `evaluate` turns a batch into features `[n, d]`, or None, and losses `[n]`; it is called for
    every batch before the virtual step and again after it, without gradients. Scores come in the
    order of the batches.
    """
    if len(batches) == 0:
        raise ValueError("there is nothing to score: pass at least one batch")
    step = VirtualStep(model, lr, optimizer, grad_scale) if increments else None
    return _score(model, step, batches, evaluate, mode)


def _score(
    model: nn.Module,
    step: VirtualStep | None,
    batches: Sequence[BatchT],
    evaluate: Callable[[BatchT], Evaluated],
    mode: Literal["eval", "train"],
    refresh: Callable[[], None] | None = None,
    numbers: Tensor | None = None,
) -> Scores:
    """Two passes over the batches, or one.

    `refresh` is told whenever the parameters have moved; `numbers` `[m]` are what examples are
    called by if one is not finite.
    """
    # A virtual step sees to that by itself.
    whole = resharded(model) if step is None else nullcontext()
    with whole, torch.no_grad(), modules_restored(model, training=mode == "train"):
        # In train mode the first forward leaves statistics behind that the second must not see.
        fresh = modules_restored(model) if mode == "train" else nullcontext()
        with random_state_restored(_device(model, step)) as rewind:
            with fresh:
                features, losses = _pass(batches, evaluate, refresh)
            after = losses
            if step is not None:
                rewind()
                with step.taken():
                    _, after = _pass(batches, evaluate, refresh)
    increments = after - losses
    if not _all_finite(increments, features):
        _check_losses(losses, "before", "the model and the stored input", numbers)
        _check_losses(after, "after", "the stream gradient, or take a smaller lr", numbers)
        if features is not None and numbers is not None:
            _check_rows(features, numbers)
        if features is not None:
            check_features(features)
    if step is None:
        nobody = torch.empty(0, dtype=torch.int64, device=losses.device)
        return Scores(increments, losses, features, landmarks=nobody, passes=1)
    return Scores(increments, losses, features)


def _pass(
    batches: Sequence[BatchT],
    evaluate: Callable[[BatchT], Evaluated],
    refresh: Callable[[], None] | None,
) -> Evaluated:
    """Features `[m, d]` and losses `[m]` of one forward over the batches, without gradients."""
    if refresh is not None:
        refresh()
    features, losses = zip(*map(evaluate, batches), strict=True)
    # Casts of autocast made without gradients must not serve a later training forward.
    forget_casts()
    found = [part for part in features if part is not None]
    return _joined(found) if found else None, _joined(losses)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _device(model: nn.Module, step: VirtualStep | None) -> torch.device:
    return next(model.parameters()).device if step is None else step.device


def _own_forward(model: nn.Module, mode: str, device: torch.device) -> Forward:
    own: Forward | None = getattr(model, "forward_features", None)
    if own is None:
        raise ValueError(
            f"{type(model).__name__} has no forward_features(x) -> (features, logits): add it, or "
            "pass forward=..., a function that returns both"
        )
    folds = mode == "eval" and can_fold(model) and not torch.is_autocast_enabled(device.type)
    return FoldedForward(model) if folds else own


def _checked_count(
    inputs: Tensor, targets: Tensor, rows: Tensor | None, mode: str, chunk: int | None
) -> int:
    """How many examples there are to score."""
    count = inputs.shape[0] if rows is None else rows.shape[0]
    if count == 0:
        raise ValueError("there is nothing to score: pass at least one stored example")
    if len(inputs) != len(targets):
        raise ValueError(
            f"{len(inputs)} inputs but {len(targets)} targets: both need one row per stored example"
        )
    if mode not in ("eval", "train"):
        raise ValueError(f"mode must be 'eval' or 'train', got {mode!r}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    return count


def _check_outputs(features: Tensor, losses: Tensor, count: int) -> None:
    if losses.shape != (count,):
        raise ValueError(
            f"the loss of {count} examples must have shape [{count}], got {list(losses.shape)}; "
            "use a per-example loss (reduction='none')"
        )
    if features.ndim != 2 or features.shape[0] != count:
        raise ValueError(
            f"features of {count} examples must have shape [{count}, d], got "
            f"{list(features.shape)}; pool or flatten them"
        )


def _check_losses(losses: Tensor, when: str, suspect: str, numbers: Tensor | None) -> None:
    bad = (~losses.isfinite()).nonzero()
    if len(bad) == 0:
        return
    place = int(bad[0])
    number = place if numbers is None else int(numbers[place])
    raise NonFiniteError(
        f"the loss of scored example {number} {when} the virtual step is {float(losses[place])}; "
        f"check {suspect}"
    )


def _check_rows(features: Tensor, numbers: Tensor) -> None:
    bad = (~features.isfinite()).any(dim=1).nonzero()
    if len(bad):
        raise ValueError(
            f"features of scored example {int(numbers[int(bad[0])])} are not finite; check the "
            "forward pass that produced them, or leave that memory out of the scored set"
        )


def _all_finite(increments: Tensor, features: Tensor | None) -> bool:
    """A finite sum proves it in one pass; a sum that is not finite may only have overflowed."""
    total = increments.sum()
    return math.isfinite(total if features is None else total + features.sum())
