"""The economical schedule: rescorings that cost little, and few of them.

All candidates get one forward, for their features. A few landmarks get the virtual step and a
second one, and the kernel carries their increments to the others. Intervals grow from one rescoring
to the next, because a task's first steps are those that change the network most.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from sphere_replay.scoring import Scores

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
        shortest: Draws between a task's first two rescorings, if `every` is no less.
        longest: Draws between two rescorings at most, or `every` if that is more: up to it
            intervals double.
    """

    landmarks: int = 128
    shortest: int = 4
    longest: int = 32

    def __post_init__(self) -> None:
        if min(self.landmarks, self.shortest, self.longest) < 1:
            raise ValueError(
                "an economical schedule has at least 1 landmark, and intervals of at least 1 draw, "
                f"got {self}"
            )


def economical_scores(
    slots: Tensor,
    score: Scorer,
    labels: Labels | None,
    landmarks: int,
    generator: torch.Generator,
) -> Scores:
    """Scores of the memories in the slots `[m]`, with increments at so many landmarks alone."""
    if landmarks >= len(slots):
        return score(slots)
    if landmarks == 0:
        scores = score(slots, increments=False)
        nobody = torch.empty(0, dtype=torch.int64, device=scores.losses.device)
        known = None if labels is None else labels(slots)
        return replace(scores, labels=known, landmarks=nobody, passes=1)
    order = torch.randperm(len(slots), generator=generator, device="cpu")
    chosen, others = order[:landmarks], order[landmarks:]
    parts = [score(slots[chosen]), score(slots[others], increments=False)]
    place = order.argsort()

    def whole(values: list[Tensor]) -> Tensor:
        return torch.cat(values)[place.to(values[0].device)]

    features = [part.features for part in parts if part.features is not None]
    losses = whole([part.losses for part in parts])
    return Scores(
        increments=whole([part.increments for part in parts]),
        losses=losses,
        features=whole(features) if features else None,
        labels=None if labels is None else labels(slots),
        landmarks=chosen.to(losses.device),
        passes=1 + landmarks / len(slots),
    )
