"""Memories, scorers and selections that do what a test tells them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from sphere_replay.memory import Memory, Offer
from sphere_replay.replay import (
    Engine,
    Weighting,
)
from sphere_replay.scoring import Scores

MANY = 40_000
"""Draws with replacement, from which the probabilities are read back."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Scripted:
    """Admission that places rows where the test says; fills up in order without a script."""

    name: ClassVar[str] = "scripted"
    draws: ClassVar[bool] = False

    def __init__(self) -> None:
        self.next: list[int] | None = None

    def place(self, offer: Offer) -> Tensor:
        if self.next is None:
            return torch.arange(offer.filled, offer.filled + offer.count)
        return torch.tensor(self.next)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        assert not state


def filled(size: int, capacity: int = 64) -> Memory:
    memory = Memory(capacity, Scripted())
    memory.add(x=torch.arange(size))
    return memory


def overwrite(memory: Memory, *slots: int) -> None:
    admission = memory.admission
    assert isinstance(admission, Scripted)
    admission.next = list(slots)
    memory.add(x=torch.arange(1000, 1000 + len(slots)))
    admission.next = None


@dataclass
class Scorer:
    """Increments by slot; remembers which slots it was asked for, and counts."""

    increments: Tensor
    asked: list[Tensor] = field(default_factory=list)
    glanced: list[Tensor] = field(default_factory=list)
    """Slots of which increments were not wanted."""

    def __call__(self, slots: Tensor, *, increments: bool = True) -> Scores:
        (self.asked if increments else self.glanced).append(slots.clone())
        values = self.increments[slots]
        features = torch.stack([values.cos(), values.sin()], dim=1)
        found = values if increments else torch.zeros_like(values)
        return Scores(found, values.abs(), features, passes=2 if increments else 1)


@dataclass(frozen=True)
class Given:
    """Weights as the scorer gives them, over a mass; remembers the running scales it was told."""

    mass: float = 1.0
    needs_scores = True
    needs_features = False
    needs_increments = True
    every = 1
    told: list[float | None] = field(default_factory=list)

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        self.told.append(running_scale)
        weights = scores.increments * (self.mass / scores.increments.sum().clamp(min=1e-9))
        return Weighting(weights, self.mass, (running_scale or 0.0) + 1.0)


def no_scores(slots: Tensor, *, increments: bool = True) -> Scores:
    raise AssertionError("the scorer must not be called")


def frequencies(replay: Engine, scorer: Scorer, size: int) -> Tensor:
    """How often each slot is drawn, from one large draw with replacement."""
    assert replay.replacement
    return replay.draw(MANY, scorer).indices.bincount(minlength=size) / MANY


def assert_drawn_by(weights: list[float], observed: Tensor) -> None:
    expected = torch.tensor(weights) / sum(weights)
    assert torch.equal(observed == 0, expected == 0)
    # Five standard deviations of a binomial share.
    assert bool(((observed - expected).abs() <= 5 * (expected / MANY).sqrt()).all())


# When it scores.


def scorings(replay: Engine, scorer: Scorer, draws: int) -> list[int]:
    """Which of the next draws scored."""
    result = []
    for number in range(draws):
        before = len(scorer.asked)
        replay.draw(2, scorer)
        result += [number] * (len(scorer.asked) - before)
    return result
