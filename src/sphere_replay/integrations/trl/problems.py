"""The problems of a training set: rows that share a name are one problem.

Which of them may be replayed, and which of those are candidates in an update.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sphere_replay.allocation.sampling import Scheme, draw
from sphere_replay.errors import DataError
from sphere_replay.memory.admission import Offer
from sphere_replay.memory.reservoir import Reservoir
from sphere_replay.memory.state import check_keys
from sphere_replay.randomness import generator_for

PROMPT = "prompt"
_IMAGES = ("image", "images")


@dataclass(frozen=True)
class Problems:
    """Distinct problems, numbered in order of first appearance."""

    names: tuple[str | int, ...]
    rows: tuple[int, ...]
    """The first row of each."""
    numbers: Mapping[str | int, int]
    """From name to number."""

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(cls, dataset: Any, id_field: str) -> "Problems":
        """Read names and prompts once; an error unless every name stands for one prompt."""
        columns: list[str] = getattr(dataset, "column_names", None) or []
        if not hasattr(dataset, "__len__"):
            raise DataError(
                "replay needs a training set whose rows can be read at any time: pass a "
                "datasets.Dataset, not an iterable one"
            )
        if len(dataset) == 0:
            raise DataError("the training set is empty: nothing can be sampled or replayed")
        for name, what in ((id_field, "names each row's problem"), (PROMPT, "holds the prompt")):
            if name not in columns:
                hint = "; or pass id_field=..." if name == id_field else ""
                raise DataError(
                    f"the training set has no column {name!r}, which {what}; it has "
                    f"{', '.join(columns)}: add it{hint}"
                )
        pictures = [name for name in _IMAGES if name in columns]
        if pictures:
            raise DataError(
                f"the training set has a column {pictures[0]!r}: replay samples text-only problems"
            )
        return cls._numbered(list(dataset[id_field]), list(dataset[PROMPT]))

    @classmethod
    def _numbered(cls, names: Sequence[Any], prompts: Sequence[Any]) -> "Problems":
        first: dict[str | int, int] = {}
        for row, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
            if isinstance(name, bool) or not isinstance(name, str | int):
                raise DataError(
                    f"row {row} of the training set names its problem {name!r}: use text or whole "
                    "numbers"
                )
            known = first.setdefault(name, row)
            if prompts[known] != prompt:
                raise DataError(
                    f"rows {known} and {row} of the training set have different prompts under one "
                    f"name, {name!r}: give each problem a name of its own"
                )
        numbers = {name: number for number, name in enumerate(first)}
        return cls(tuple(first), tuple(first.values()), numbers)

    @property
    def digest(self) -> str:
        """SHA-256 of the names in order: saved replay belongs to these problems."""
        return hashlib.sha256(json.dumps(self.names).encode()).hexdigest()


def admission_schedule(problems: int, capacity: int, seed: int) -> Tensor:
    """The slot of the n-th distinct problem of a stream, int64 `[problems]`; -1: not kept.

    A reservoir, decided before training from the seed alone: methods that share a seed remember
    the same problems.
    """
    uniforms = torch.rand(problems, dtype=torch.float64, generator=generator_for(seed, "admission"))
    offer = Offer({}, uniforms, count=problems, seen=0, filled=0, capacity=capacity)
    return Reservoir().place(offer)


class ProblemMemory:
    """Numbers of remembered problems, and what came of each problem's latest group.

    Args:
        problems: How many there are.
        capacity: How many can be remembered at a time.
        seed: Decides which are, once there are more.
    """

    def __init__(self, problems: int, capacity: int, seed: int) -> None:
        self.schedule = admission_schedule(problems, capacity, seed)
        self._held = torch.full((min(capacity, problems),), -1)
        self._appeared = torch.zeros(problems, dtype=torch.bool)
        self._mixed = torch.zeros(problems, dtype=torch.bool)

    def __len__(self) -> int:
        return int((self._held >= 0).sum())

    @property
    def problems(self) -> Tensor:
        """The remembered ones, by slot."""
        return self._held[self._held >= 0]

    @property
    def mixed(self) -> Tensor:
        """Whether the latest group of each problem had different outcomes; bool `[problems]`."""
        return self._mixed.clone()

    def offer(self, problems: Sequence[int]) -> None:
        """Problems of the stream, in order; each counts when it appears for the first time."""
        for problem in problems:
            if not self._appeared[problem]:
                slot = int(self.schedule[int(self._appeared.sum())])
                self._appeared[problem] = True
                if slot >= 0:
                    self._held[slot] = problem

    def record(self, problems: Tensor, mixed: Tensor) -> None:
        """A group was sampled for each of the problems `[n]`: were its outcomes mixed?"""
        self._mixed[problems] = mixed

    def candidates(self, count: int, favor: float, generator: torch.Generator) -> Tensor:
        """Up to `count` distinct problems, one after the other, mixed ones `favor` times likelier.

        Returns their numbers, int64 `[n]`.
        """
        held = self.problems
        weights = torch.where(self._mixed[held], favor, 1.0).double()
        number = min(count, len(held))
        return held[draw(weights / weights.sum(), number, Scheme.SUCCESSIVE, generator)]

    def state_dict(self) -> dict[str, Tensor]:
        """Everything but the schedule, which follows from the arguments."""
        return {
            "held": self._held.clone(),
            "appeared": self._appeared.clone(),
            "mixed": self._mixed.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with a memory of the same size."""
        check_keys(state, self.state_dict(), owner="a saved problem memory")
        for name, values in (("held", self._held), ("appeared", self._appeared)):
            if state[name].shape != values.shape:
                raise ValueError(
                    f"the saved problem memory has {len(state[name])} entries of {name!r}, this "
                    f"one {len(values)}: resume with the same training set and capacity"
                )
        self._held, self._appeared = state["held"].clone(), state["appeared"].clone()
        self._mixed = state["mixed"].clone()
