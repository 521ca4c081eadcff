"""The economical schedule: rescorings that cost little, because most of it is known already.

Features that training has computed serve as they are while they are young. A few landmarks are
scored with two forwards, and the kernel carries their increments to the others. Intervals grow from
one rescoring to the next, because a task's first steps are those that change the network most.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sphere_replay.memory import Memory
from sphere_replay.replay.notes import Notes
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
        age: Draws for which noted features serve; others get a forward.
        longest: Draws between two rescorings at most; intervals double up to it, from `every` at
            the start of a task.
    """

    landmarks: int = 128
    age: int = 32
    longest: int = 32

    def __post_init__(self) -> None:
        if min(self.landmarks, self.longest) < 1 or self.age < 0:
            raise ValueError(
                "an economical schedule has at least 1 landmark, a longest interval of at least 1 "
                f"and an age of at least 0, got {self}"
            )


class Economizer:
    """Scores all candidates by scoring a few.

    Args:
        economy: How much may be spent.
        memory: What is scored.
        generator: Chooses landmarks.
    """

    def __init__(self, economy: Economy, memory: Memory, generator: torch.Generator) -> None:
        self.notes = Notes(memory)
        self._economy = economy
        self._generator = generator

    def scores(
        self, slots: Tensor, score: Scorer, labels: Labels | None, *, increments: bool
    ) -> Scores:
        """Scores of the memories in the slots `[m]`, with increments at the landmarks alone."""
        count = min(self._economy.landmarks, len(slots)) if increments else 0
        landmarks = torch.randperm(len(slots), generator=self._generator)[:count]
        # Those that were just scored are not old, so nobody is passed forward for nothing.
        known = self._scored(slots[landmarks], score) if count else None
        old = self.notes.older(slots, self._economy.age).nonzero().squeeze(1)
        if len(old):
            self._scored(slots[old], score, increments=False)
        features = self.notes.read(slots)
        found = features.new_zeros(len(slots))
        if known is not None:
            landmarks = landmarks.to(found.device)
            found = found.to(known.increments.dtype).index_copy(0, landmarks, known.increments)
        return Scores(
            increments=found,
            losses=torch.full_like(found, torch.nan),
            features=features,
            labels=None if labels is None else labels(slots),
            landmarks=landmarks,
            passes=(2 * count + len(old)) / len(slots),
        )

    def _scored(self, slots: Tensor, score: Scorer, *, increments: bool = True) -> Scores:
        scores = score(slots) if increments else score(slots, increments=False)
        assert scores.features is not None  # only selections that need them are economical
        self.notes.write(slots, scores.features)
        return scores
