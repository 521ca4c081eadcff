"""What a job is, and what jobs of all domains share: tallies, costs, devices, ends of tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from sphere_replay.errors import DivergenceError, UsageError


class AfterStep(Protocol):
    """To be called after each step, when the job's state can be saved."""

    def __call__(
        self, record: Mapping[str, object] | None, seconds: Mapping[str, float] | None = None
    ) -> None:
        """Log, report, save a checkpoint if it is time; may raise `Interrupted`.

        Args:
            record: What is worth a line of the log, if anything.
            seconds: Durations to go with it; they are not deterministic and stay apart.
        """
        ...


class Job(Protocol):
    """A computation of `len(job)` steps whose whole state can be saved between any two."""

    def __len__(self) -> int: ...

    @property
    def checksums(self) -> dict[str, str]:
        """Digests of the data the job works on."""
        ...

    @property
    def status(self) -> str:
        """A few words for the progress bar."""
        ...

    def results(self) -> dict[str, Any]:
        """What came out; deterministic."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything the remaining steps depend on."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        ...

    def record(self, folder: Path, moments: int) -> None:
        """Keep so many rescorings, see `runs.recording`; neither state nor results depend on it."""
        ...


class SteppedJob(Job, Protocol):
    """A job whose steps are taken one by one."""

    def advance(self, step: int) -> dict[str, Any] | None:
        """Take a step; a record for the log, if there is something worth a line."""
        ...


@runtime_checkable
class LoopingJob(Job, Protocol):
    """A job with a loop of its own."""

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints, at most: its steps may be long."""
        ...

    def run(self, first_step: int, after_step: AfterStep) -> None:
        """Take all steps from the given one on; an exception of `after_step` ends the loop."""
        ...


@dataclass
class Costs:
    """Examples passed forward and backward, by purpose."""

    forward: int = 0
    backward: int = 0
    scored: int = 0
    """Forward passes made only to score memories (already part of `forward`)."""

    def summary(self, stream_examples: int) -> dict[str, float]:
        """The costs in a run's results: passes per example of the stream."""
        return {
            "stream_examples": stream_examples,
            "forward_per_example": self.forward / stream_examples,
            "backward_per_example": self.backward / stream_examples,
            "scored_per_example": self.scored / stream_examples,
        }


@dataclass
class ReplayTally:
    """What replay did, summed over the run: named numbers, each over the draws that have it."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """How many numbers are in each sum."""

    def add(self, numbers: Mapping[str, float]) -> None:
        """Add what is known of a draw."""
        for name, number in numbers.items():
            self.sums[name] = self.sums.get(name, 0.0) + number
            self.counts[name] = self.counts.get(name, 0) + 1

    def mean(self, name: str) -> float | None:
        """Mean of a number over the draws that have it."""
        return self.sums[name] / self.counts[name] if name in self.counts else None


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no GPU here: choose --device cpu")


def ratio(part: float, whole: float) -> float | None:
    """Part / whole; None of nothing."""
    return part / whole if whole else None


def ends_of_tasks(tasks: Sequence[int]) -> list[int]:
    """How many steps are done at the end of each task, from the task of every step."""
    last = len(tasks)
    return [end for end in range(1, last + 1) if end == last or tasks[end] != tasks[end - 1]]


def in_last_quarter(steps: Sequence[int], count: int) -> frozenset[int]:
    """So many evenly spaced ones of the last quarter of some steps, the last among them."""
    quarter = steps[-max(1, len(steps) // 4) :]
    count = min(count, len(quarter))
    return frozenset(quarter[len(quarter) * place // count - 1] for place in range(1, count + 1))


def diverged(error: Exception, step: int | None = None) -> DivergenceError:
    """The error of a run whose numbers have stopped being numbers, and what to do about it."""
    place = "" if step is None else f" at step {step}"
    return DivergenceError(f"the run has diverged{place}: {error}; try a lower lr")
