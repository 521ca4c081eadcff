"""Which problems may be replayed, and which of them are candidates in an update."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sphere_replay.allocation.sampling import Scheme, draw
from sphere_replay.memory.admission import Offer
from sphere_replay.memory.reservoir import Reservoir
from sphere_replay.memory.state import check_keys
from sphere_replay.randomness import generator_for


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
