"""The economical schedule: rescorings that cost little, and few of them.

All candidates get one forward, for their features, but for those that training has just passed. A
few landmarks get the virtual step and a second one, and the kernel carries their increments to the
others. Intervals grow from one rescoring to the next, because a task's first steps are those that
change the network most.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sphere_replay.replay.passing import Passing
from sphere_replay.scoring import Scores
from sphere_replay.validation import check_counts, check_fraction

Labels = Callable[[Tensor], Tensor | None]
"""Class numbers int64 `[m]` of the memories in the given slots `[m]`; None: they have none."""


class Scorer(Protocol):
    """Scores memories; without `increments` one forward is enough."""

    def __call__(self, slots: Tensor, *, increments: bool = True) -> Scores:
        """Scores of the memories in the slots `[m]`."""
        ...


@dataclass(frozen=True)
class Economy:
    """Numbers of the economical schedule.

    Attributes:
        landmarks: Memories with two forwards at a rescoring, chosen uniformly.
        shortest: Draws between a task's first two rescorings, if `every` is no less and they have
            been paid for: no more is ever passed forward than by rescoring all at every n-th draw.
        longest: Draws up to which intervals double, or `every` if that is more; see `steady`.
        reuse: Draws for which features and losses that training computed stand for those of a
            forward, where somebody hands them on: see `Engine.passed`. 0: never.
        steady: Share of what the weights say that may be news at a rescoring for intervals to go on
            doubling, up to eight times as many draws, and share of the memory that may be new in
            an interval that has become so long. 0: they never do.
    """

    landmarks: int = 128
    shortest: int = 4
    longest: int = 32
    reuse: int = 32
    steady: float = 0.4

    def __post_init__(self) -> None:
        check_counts(landmarks=self.landmarks, shortest=self.shortest, longest=self.longest)
        check_counts(0, reuse=self.reuse)
        check_fraction(steady=self.steady)


def economical_scores(
    slots: Tensor,
    score: Scorer,
    labels: Labels | None,
    landmarks: int,
    generator: torch.Generator,
    passing: Passing | None = None,
) -> Scores:
    """Scores of the memories in the slots `[m]`, with increments at so many landmarks alone.

    Others that training has passed lately are not passed again.
    """
    if landmarks >= len(slots):
        return score(slots)
    order = torch.arange(len(slots), device="cpu")
    if landmarks:
        order = torch.randperm(len(slots), generator=generator, device="cpu")
    chosen, others = order[:landmarks], order[landmarks:]
    known = None if passing is None else passing.known(slots[others])
    parts, reused = [], others[:0]
    if known is not None:
        parts.append(Scores(torch.zeros_like(known.losses), known.losses, known.features))
        unknown = torch.ones(len(others), dtype=torch.bool, device="cpu")
        unknown[known.places] = False
        reused, others = others[known.places], others[unknown]
    if landmarks:
        parts.append(score(slots[chosen]))
    if len(others):
        parts.append(score(slots[others], increments=False))
    place = torch.cat([reused, chosen, others]).argsort()

    def whole(values: list[Tensor]) -> Tensor:
        like = values[-1]  # of a forward, if there was one
        return torch.cat([part.to(like) for part in values])[place.to(like.device)]

    features = [part.features for part in parts if part.features is not None]
    widths = [part.shape[1] for part in features]
    if len(features) < len(parts):
        features = []  # a scorer that finds none, whatever was handed on
    elif known is not None and widths[0] != widths[-1]:
        raise ValueError(
            f"features of {widths[0]} numbers were handed on by passed(), but scoring finds "
            f"{widths[-1]}: hand on what it takes for features, after forget_passes()"
        )
    losses = whole([part.losses for part in parts])
    return Scores(
        increments=whole([part.increments for part in parts]),
        losses=losses,
        features=whole(features) if features else None,
        labels=None if labels is None else labels(slots),
        landmarks=chosen.to(losses.device),
        passes=(2 * landmarks + len(others)) / len(slots),
        reused=None if passing is None else len(reused) / len(slots),
    )
