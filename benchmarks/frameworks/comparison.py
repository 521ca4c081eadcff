"""One stream, one network and one measure for all frameworks: theirs beside ours.

Split digits, two classes at a time, clean and with 40% of the labels wrong. Methods of a seed are
trained one after the other, so that a busy moment of the machine meets all of them alike.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.frameworks.mammoth_stand_in import Backbone
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.reports.statistics import PairedDifference, mean, paired_difference
from sphere_replay.vision.datasets import load_images
from sphere_replay.vision.noise import corrupt

OWN = "ER"
"""That of the framework, or as it is written by hand where there is none at hand."""
SELECTIONS = ("uniform", "sphere", "sphere-calibrated")
NOISES = (0.0, 0.4)
TASKS, BATCH, REPLAYED, CAPACITY, EVERY, RATE = 5, 10, 20, 200, 4, 0.3
"""The learning rate is the best of 0.1, 0.3, 0.6 and 1 for the joint ER of `mammoth_stand_in`, on
seeds 100 to 104."""
TAIL = 10
"""Accuracy moves by points from step to step: it is averaged over the last so many updates."""

Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks of batches, and clean test examples of all classes."""

    tasks: Sequence[Batches]
    test_x: Tensor
    test_y: Tensor

    @property
    def updates(self) -> int:
        """Batches of all tasks."""
        return sum(map(len, self.tasks))


class Watch:
    """Told after each update: measures accuracy at the last ones, and keeps that time apart."""

    def __init__(self, stream: Stream, model: nn.Module) -> None:
        self.stream, self.model = stream, model
        self.accuracies: list[float] = []
        self._updates, self._aside, self._start = 0, 0.0, time.perf_counter()

    def updated(self) -> None:
        """Another update was made."""
        self._updates += 1
        if self._updates > self.stream.updates - TAIL:
            start = time.perf_counter()
            self.model.eval()
            with torch.no_grad():
                right = self.model(self.stream.test_x).argmax(dim=1) == self.stream.test_y
            self.model.train()
            self.accuracies.append(100 * float(right.double().mean()))
            self._aside += time.perf_counter() - start

    def result(self) -> dict[str, float]:
        """Accuracy in percent, and milliseconds per update."""
        spent = time.perf_counter() - self._start - self._aside
        if self._updates != self.stream.updates:
            raise RuntimeError(f"{self._updates} updates instead of {self.stream.updates}")
        return {
            "accuracy": round(mean(self.accuracies), 2),
            "milliseconds": round(1000 * spent / self._updates, 3),
        }


Train = Callable[[str, Stream, nn.Module, int], dict[str, float]]
"""Trains by a method, `OWN` or a selection, and gives what a `Watch` has seen."""


def network(seed: int) -> Backbone:
    """A multilayer perceptron."""
    with globally_seeded(generator_for(seed, "initialization")):
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU())
        return Backbone(body, nn.Linear(100, 10))


@cache
def _digits() -> Any:
    return load_images("digits")


def stream_of(noise: float, seed: int) -> Stream:
    """Whole batches only, split into tasks by the label that is seen."""
    data = _digits()
    x, labels = data.train_images.float() / 255, data.train_labels
    if noise:
        labels = corrupt(labels, noise, 10, generator_for(seed, "corruption"))
    tasks = []
    for task in range(TASKS):
        mine = (labels // 2 == task).nonzero()[:, 0]
        order = torch.randperm(len(mine), generator=generator_for(seed, f"order of task {task}"))
        whole = mine[order][: len(mine) // BATCH * BATCH]
        tasks.append([(x[rows], labels[rows]) for rows in whole.split(BATCH)])
    return Stream(tasks, data.test_images.float() / 255, data.test_labels)


def compare(train: Train, seeds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every method with every seed and noise."""
    rows = []
    for noise in NOISES:
        for seed in range(seeds):
            stream = stream_of(noise, seed)
            for method in (OWN, *SELECTIONS):
                found = train(method, stream, network(seed), seed)
                rows.append({"noise": noise, "seed": seed, "method": method, **found})
            say(f"noise {noise:.0%}, seed {seed}: done")
    return rows


@dataclass(frozen=True)
class Line:
    """A method at one noise, beside the other ER."""

    noise: float
    method: str
    accuracy: float
    gain: PairedDifference | None
    """Over the other ER."""
    ratio: float
    """Median over the seeds of its time by that of the other ER."""


def summary(rows: Sequence[dict[str, Any]]) -> list[Line]:
    """In the order of the rows."""

    def of(noise: float, method: str, field: str) -> dict[int, float]:
        chosen = [r for r in rows if (r["noise"], r["method"]) == (noise, method)]
        return {row["seed"]: row[field] for row in chosen}

    lines = []
    for noise, method in dict.fromkeys((row["noise"], row["method"]) for row in rows):
        accuracy, own = (of(noise, name, "accuracy") for name in (method, OWN))
        spent, theirs = (of(noise, name, "milliseconds") for name in (method, OWN))
        lines.append(
            Line(
                noise,
                method,
                mean(list(accuracy.values())),
                None if method == OWN else paired_difference(accuracy, own),
                statistics.median(spent[seed] / theirs[seed] for seed in spent),
            )
        )
    return lines


def table(lines: Sequence[Line]) -> str:
    """Markdown."""
    found = [
        "| wrong labels | replay | accuracy | gain over ER | time of an update |",
        "|---|---|---|---|---|",
    ]
    for line in lines:
        gain = ""
        if line.gain is not None and line.gain.interval is not None:
            low, high = (round(end, 1) + 0.0 for end in line.gain.interval)
            gain = f"{round(line.gain.mean, 1) + 0.0:+.1f} [{low:+.1f}, {high:+.1f}]"
        found.append(
            f"| {line.noise:.0%} | {line.method} | {line.accuracy:.1f}% | {gain} | "
            f"{line.ratio:.2f} |"
        )
    return "\n".join(found)
