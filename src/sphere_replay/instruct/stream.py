"""The stream of a run: the tasks of an order, the examples of each, and what they are tested on."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from sphere_replay.errors import DataError
from sphere_replay.instruct.tasks import Corpus, Example, Task
from sphere_replay.randomness import generator_for


class EvaluateOn(StrEnum):
    """Where accuracies come from."""

    TEST = "test"
    DEVELOPMENT = "development"
    """Training examples that the cap left over: for choosing settings without seeing the test."""


@dataclass(frozen=True, eq=False)
class StreamTask:
    """A task's share of the stream."""

    task: Task
    train: tuple[Example, ...]
    """In the order of the stream."""
    judged: tuple[Example, ...]
    """What the accuracies are measured on."""


@dataclass(frozen=True, eq=False)
class TaskStream:
    """Tasks one after the other; a single pass."""

    tasks: tuple[StreamTask, ...]

    def __len__(self) -> int:
        """Number of training examples in the stream."""
        return sum(len(part.train) for part in self.tasks)

    def batches(self, batch: int) -> Iterator[tuple[int, range]]:
        """Task and places in the stream of each update; a task's last batch may be smaller."""
        start = 0
        for number, part in enumerate(self.tasks):
            end = start + len(part.train)
            for first in range(start, end, batch):
                yield number, range(first, min(first + batch, end))
            start = end

    @property
    def digest(self) -> str:
        """SHA-256 of all examples in order: two runs with equal digests saw the same stream."""
        texts = [
            [part.task.name, *([e.sentence, e.label] for e in (*part.train, *part.judged))]
            for part in self.tasks
        ]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def build_stream(
    corpus: Corpus,
    order: Sequence[str],
    seed: int,
    *,
    cap: int,
    tests_per_task: int,
    noise: float = 0.0,
    evaluate_on: EvaluateOn | str = EvaluateOn.TEST,
) -> TaskStream:
    """The stream of an order and a seed.

    Each task's training examples are shuffled by the seed; the first `cap` are the stream, and
    development examples come from those behind them. Test examples are the same for all seeds, and
    their answers are right; so are those of development examples.
    """
    on_test = EvaluateOn(evaluate_on) is EvaluateOn.TEST
    parts = []
    for name in order:
        task = corpus.tasks[name]
        shuffled = _shuffled(task.train, seed, f"stream order of {name}")
        # Which examples are tests must not depend on the run, or runs could not be paired.
        pool = _shuffled(task.test, 0, f"tests of {name}") if on_test else shuffled[cap:]
        if not pool:
            raise DataError(
                f"{name} has no development examples: all {len(shuffled)} training examples are "
                f"in the stream. Lower cap ({cap}), or leave the task out of the order"
            )
        train = _corrupted(shuffled[:cap], task, noise, seed)
        parts.append(StreamTask(task, train, pool[:tests_per_task]))
    return TaskStream(tuple(parts))


def chosen(task: Task, count: int) -> tuple[Example, ...]:
    """So many training examples of a task, the same for all seeds."""
    return _shuffled(task.train, 0, f"texts of {task.name}")[:count]


def _corrupted(
    examples: tuple[Example, ...], task: Task, noise: float, seed: int
) -> tuple[Example, ...]:
    """A careless annotator: exactly this share of the answers is another label of the task."""
    generator = generator_for(seed, f"corruption of {task.name}")
    wrong = torch.randperm(len(examples), generator=generator)[: round(noise * len(examples))]
    found = list(examples)
    for place in wrong.tolist():
        others = [label for label in task.labels if label != found[place].label]
        chosen = int(torch.randint(len(others), (), generator=generator))
        found[place] = replace(found[place], label=others[chosen])
    return tuple(found)


def _shuffled(examples: Sequence[Example], seed: int, purpose: str) -> tuple[Example, ...]:
    places = torch.randperm(len(examples), generator=generator_for(seed, purpose))
    return tuple(examples[place] for place in places.tolist())
