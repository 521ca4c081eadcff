"""What training costs: the runner against a bare loop, SPHERE against plain replay, a rescoring.

Every figure is a ratio of medians taken in turns in one run. Steps are those of Split MNIST with an
MLP on one thread; rescorings are those of the MLP, and of ResNet-18 on all threads.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from benchmarks import Progress, Report, Target
from benchmarks.digits import random_images, stored_mnist
from benchmarks.steps import time_steps
from benchmarks.stopwatch import fair_clock, threads
from benchmarks.timing import all_threads, describe_machine, interleave, milliseconds
from sphere_replay.allocation import Allocation, Sphere, allocate
from sphere_replay.randomness import generator_for
from sphere_replay.scoring import Scores, score
from sphere_replay.vision.datasets import ImageData
from sphere_replay.vision.models import build_model
from sphere_replay.vision.specs import dataset_spec
from sphere_replay.vision.transforms import pipeline

Call = Callable[[], object]

SUMMARY = "time training steps against a bare loop, and rescorings against plain forwards"


@dataclass(frozen=True)
class Scored:
    """A network and how many stored inputs it scores; without a width it is the MLP."""

    memories: int
    width: int | None = None

    @property
    def name(self) -> str:
        """The network, for people."""
        return "MLP" if self.width is None else f"ResNet-18, width {self.width}"


MLP_500, NARROW_500, FULL_500 = Scored(500), Scored(500, 20), Scored(500, 64)


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long."""

    images: int = 60_000
    """Random images, where there is no MNIST."""
    capacity: int = 500
    steps: int = 16
    """Steps of a turn: some intervals between rescorings, and enough to fill the memory."""
    networks: tuple[Scored, ...] = (MLP_500, NARROW_500, FULL_500)
    threads: int | None = None
    """Threads of the ResNets; None: as many as torch has."""
    least_rounds: int = 5
    least_seconds: float = 5.0


QUICK = Plan(images=10_000, networks=(MLP_500, Scored(64, 8)), least_rounds=3, least_seconds=0.3)


@dataclass(frozen=True)
class Cell:
    """One comparison: how long something takes, and how many times as long as something else."""

    figure: str
    against: str
    setting: str
    threads: int
    rounds: int
    seconds: float
    ratio: float
    parts: dict[str, float] = field(default_factory=dict)
    """In the unit of the ratio, to which they add up."""
    images_per_second: float | None = None
    """Stream images, for steps."""


LEGEND = (
    "Steps: experience replay on the first task of Split MNIST with 40% of the labels wrong; MLP "
    "784-100-100-10, 64 images of the stream and 64 of a full memory of 500, one thread. `ER` is "
    "the runner with all that a run records, but without evaluations; the bare loop is plain "
    "PyTorch with nothing but the two losses, SGD and a reservoir. `ER + SPHERE` rescores the "
    "whole memory at every fourth step; its parts are in units of a step of ER and add up to its "
    "ratio. Images are those of the stream.",
    "Rescorings: the losses of m stored images before and after the virtual step, and their "
    "features, against two plain forwards over the same memory in eval mode without gradients, "
    "each preparing the images as the network takes them and running all m at once. "
    "Allocations: of the features of these rescorings, d numbers each. Where one thread works, "
    "its processor time is measured, which other programs do not lengthen.",
)

NOTES = (
    "A step of the MLP is short, so whatever is done per step shows: checks, the figures for the "
    "log, the draw, and above all an allocation, which takes longer than two forwards of so small "
    "a network. For a ResNet-18 the same allocation is a small part of a rescoring, and a "
    "rescoring every fourth step is what SPHERE costs.",
    "A rescoring needs two forwards by definition. It can take less time than two plain ones where "
    "batch norms are folded into the convolutions and images pass in groups whose activations "
    "stay in the cache; the MLP has nothing to fold, and pays for a step that is taken and "
    "undone bit for bit.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where MNIST is, and how many threads the large networks get."""
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with mnist/train.parquet (default: $SPHERE_DATA, or else random images)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        choices=range(1, 257),
        metavar="N",
        help="threads of the ResNets (default: all; on a busy machine only 1 gives fair figures)",
    )


def measure(arguments: argparse.Namespace, progress: Progress) -> Report:
    """Time the steps, then the rescorings."""
    plan = replace(QUICK if arguments.quick else Plan(), threads=arguments.threads)
    data = stored_mnist(arguments.data)
    origin = "random images and labels of MNIST's shape" if data is None else "MNIST"
    command = ["sphere", "bench", "train"]
    command += ["--quick"] if arguments.quick else []
    if arguments.data is not None:
        command += ["--data", arguments.data.name]  # where it lies concerns this machine alone
    command += ["--threads", str(plan.threads)] if plan.threads else []
    with all_threads():
        machine = describe_machine()
        cells = measure_cells(plan, data or random_images(plan.images), progress)
    columns, rows = _table(cells)
    return Report(
        benchmark="train",
        title="Training",
        command=tuple(command),
        machine={**machine, "data": origin},
        cells=tuple(asdict(cell) for cell in cells),
        columns=columns,
        rows=rows,
        legend=(f"Data of this run: {origin}.", *LEGEND),
        notes=NOTES,
        targets=targets(cells),
    )


def measure_cells(plan: Plan, data: ImageData, progress: Progress) -> list[Cell]:
    """All comparisons of a plan."""
    total = 1 + len(plan.networks)
    progress(0, total, "training steps")
    with threads(1):
        cells = _steps(plan, data)
    for done, scored in enumerate(plan.networks, start=1):
        progress(done, total, f"rescoring, {scored.name}")
        alone = scored.width is None
        with threads(1 if alone else plan.threads or torch.get_num_threads()):
            cells += _rescoring(plan, scored)
    progress(total, total, "done")
    return cells


def targets(cells: Sequence[Cell]) -> tuple[Target, ...]:
    """What the library promises, against the worst cell of the run."""

    def worst(figure: str, *settings: str) -> float | None:
        ratios = [c.ratio for c in cells if c.figure == figure and c.setting.startswith(settings)]
        return max(ratios, default=None)

    mlp, narrow, full = (_setting(scored) for scored in (MLP_500, NARROW_500, FULL_500))
    return (
        Target("times a bare loop for a step of ER", "at most", 1.10, worst("ER", "")),
        Target("times two forwards for a rescoring, MLP", "at most", 1.15, worst("rescoring", mlp)),
        Target(
            "times two forwards for a rescoring, ResNet-18",
            "at most",
            0.7,
            worst("rescoring", narrow, full),
        ),
        Target(
            "of a rescoring for an allocation, ResNet-18, width 20",
            "at most",
            0.1,
            worst("allocation", narrow),
        ),
    )


def _steps(plan: Plan, data: ImageData) -> list[Cell]:
    """The runner against the bare loop, and SPHERE against the runner."""
    times = time_steps(
        data,
        capacity=plan.capacity,
        steps=plan.steps,
        least_rounds=plan.least_rounds,
        least_seconds=plan.least_seconds,
    )

    def cell(name: str, other: str, **labels: str) -> Cell:
        seconds = times.seconds[name]
        ratio = seconds / times.seconds[other]
        shares = times.shares if name == "sphere" else {}
        return Cell(
            **labels,
            setting="a step",
            threads=1,
            rounds=times.rounds,
            seconds=seconds,
            ratio=ratio,
            parts={part: ratio * share for part, share in shares.items()},
            images_per_second=times.batch / seconds,
        )

    return [
        cell("er", "bare", figure="ER", against="bare loop"),
        cell("sphere", "er", figure="ER + SPHERE", against="ER"),
    ]


def _rescoring(plan: Plan, scored: Scored) -> list[Cell]:
    """A rescoring against two forwards, and an allocation against the rescoring."""
    dataset = "mnist" if scored.width is None else "cifar10"
    spec, source = dataset_spec(dataset), generator_for(0, "rescoring")
    network = build_model(dataset, source, width=scored.width or 1)
    prepare = pipeline(dataset).prepare
    stored = torch.randint(256, (scored.memories, *spec.shape), dtype=torch.uint8, generator=source)
    labels = torch.randint(spec.num_classes, (scored.memories,), generator=source)
    loss = cross_entropy(network(prepare(stored[:32])), labels[:32])
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    network.eval()

    def rescore() -> Scores:
        return score(network, stored, labels, lr=0.1, prepare=prepare)

    def forward_twice() -> None:
        with torch.no_grad():
            network(prepare(stored))
            network(prepare(stored))

    scores, recipe = rescore(), Sphere.vision()
    width, setting = scores.features.shape[1], _setting(scored)

    def compare(figure: str, call: Call, against: str, other: Call, setting: str) -> Cell:
        # Two at a time: a third contestant would leave its cache to only one of them.
        timing = interleave(
            {figure: call, against: other},
            least_rounds=plan.least_rounds,
            least_seconds=plan.least_seconds,
            clock=fair_clock(),
        )
        seconds, ratio = timing.seconds[figure], timing.seconds[figure] / timing.seconds[against]
        return Cell(
            figure, against, setting, torch.get_num_threads(), timing.rounds, seconds, ratio
        )

    def reallocate() -> Allocation:
        return allocate(scores.increments, scores.features, recipe)

    return [
        compare("rescoring", rescore, "two forwards", forward_twice, setting),
        compare("allocation", reallocate, "rescoring", rescore, f"{setting}, d = {width}"),
    ]


def _setting(scored: Scored) -> str:
    return f"{scored.name}, m = {scored.memories}"


def _table(cells: Sequence[Cell]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """A row per cell, and one per part below it."""
    columns = ("what", "setting", "threads", "ms", "images/s", "against", "ratio")
    rows: list[tuple[str, ...]] = []
    for cell in cells:
        speed = "" if cell.images_per_second is None else f"{cell.images_per_second:,.0f}"
        ms = milliseconds(cell.seconds)
        what = (cell.figure, cell.setting, str(cell.threads), ms, speed)
        rows.append((*what, cell.against, f"{cell.ratio:.2f}"))
        for part, ratio in cell.parts.items():
            ms = milliseconds(cell.seconds * ratio / cell.ratio)
            rows.append((f"its {part}", "", "", ms, "", cell.against, f"{ratio:.2f}"))
    return columns, tuple(rows)
