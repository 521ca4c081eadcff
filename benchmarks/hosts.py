"""What a stream step costs: every host against ER, and host + SPHERE against the host alone.

Steps are those of CIFAR-10's presets in the second task, with a full memory, on random images and
one thread. Passes are counted beside the time, because they explain most of it.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

from benchmarks import Progress, Report, Target
from benchmarks.stopwatch import fair_clock, threads
from benchmarks.timing import describe_machine, interleave, milliseconds
from sphere_replay.hosts import HOSTS, Batch, Host
from sphere_replay.randomness import generator_for
from sphere_replay.runs.job import Costs
from sphere_replay.vision.assembly import build_host
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.presets import resolve
from sphere_replay.vision.specs import dataset_spec

SUMMARY = "time a stream step of every host against ER, and SPHERE inside it"

DATASET = "cifar10"
BASELINE = "er"
WITH_SPHERE = ("er", "er-ace", "xder", "puridiver")
"""Hosts that the paper puts SPHERE into."""
BACKWARD = 2
"""A backward pass takes about as long as two forward passes: it computes two gradients."""


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long."""

    width: int = 20
    capacity: int = 500
    batch: int = 32
    hosts: tuple[str, ...] = tuple(HOSTS)
    rounds: int = 3


QUICK = Plan(width=8, capacity=32, batch=4, rounds=1)


@dataclass(frozen=True)
class Contestant:
    """A host with a selection."""

    host: str
    select: str = "uniform"

    @property
    def name(self) -> str:
        """For people."""
        return self.host if self.select == "uniform" else f"{self.host} + {self.select}"

    @property
    def against(self) -> "Contestant":
        """Whom it is compared with."""
        return Contestant(BASELINE if self.select == "uniform" else self.host)


@dataclass(frozen=True)
class Cell:
    """A stream step of a contestant; passes are examples per stream example."""

    figure: str
    against: str
    rounds: int
    seconds: float
    ratio: float
    forward: float
    """All forward passes, those of scoring among them."""
    backward: float
    scored: float
    explained: float
    """The ratio of passes: forward + 2 backward of both."""


LEGEND = (
    "A step is one stream batch of the second task: losses, replay, update, admission. Passes are "
    "images per stream image; `scored` are the forward passes in evaluation mode that only judge "
    "stored or offered images, and are part of `forward`. `ratio` is the time of a step over that "
    "of a step of `against`; `explained` is the same ratio of forward + 2 backward passes. Fits "
    "after a task are no part of a step: GDumb, PuriDivER and ABS pay for them with epochs over "
    "the memory, see the options of each host. One thread; processor time is measured, which other "
    "programs do not lengthen.",
)

NOTES = (
    "X-DER pays for strong views: each step contrasts four views of 64 memories and of the stream "
    "batch, several times as many images as it learns from. SPHERE pays for scoring: two forwards "
    "over the memory every few steps. A scored pass is cheaper than others, because batch norms "
    "are folded into the convolutions and no graph is kept, so its steps take less time than their "
    "passes explain.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing but the options that all benchmarks share."""


def measure(arguments: argparse.Namespace, progress: Progress) -> Report:
    """Time the steps."""
    plan = QUICK if arguments.quick else Plan()
    with threads(1):
        machine = describe_machine()
        cells = measure_cells(plan, progress)
    columns, rows = _table(cells)
    setting = (
        f"ResNet-18 of width {plan.width}, {plan.batch} + {plan.batch} images, "
        f"K = {plan.capacity}, random images of CIFAR-10's shape."
    )
    return Report(
        benchmark="hosts",
        title="Hosts",
        command=("sphere", "bench", "hosts", *(["--quick"] if arguments.quick else [])),
        machine=machine,
        cells=tuple(asdict(cell) for cell in cells),
        columns=columns,
        rows=rows,
        legend=(setting, *LEGEND),
        notes=NOTES,
        targets=targets(cells) if not arguments.quick else (),
    )


def measure_cells(plan: Plan, progress: Progress) -> list[Cell]:
    """Every host of the plan, then those with SPHERE in them."""
    contestants = [Contestant(host) for host in plan.hosts]
    contestants += [Contestant(host, "sphere") for host in plan.hosts if host in WITH_SPHERE]
    announce = Announcer(progress, total=len(contestants) * (1 + plan.rounds))
    turns = {contestant: Turn(plan, contestant, announce) for contestant in contestants}
    timing = interleave(
        {contestant.name: turn for contestant, turn in turns.items()},
        least_rounds=plan.rounds,
        least_seconds=0.0,
        warm_up=False,  # filling the memories was one
        clock=fair_clock(),
    )
    announce("done")
    return [_cell(contestant, turns, timing.seconds, timing.rounds) for contestant in contestants]


class Announcer:
    """Tells a progress bar what begins, and how many things are done by then."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, label: str) -> None:
        """The next thing begins."""
        self._progress(self._done, self._total, label)
        self._done += 1


class Turn:
    """Some steps of a host whose memory is full: as many as lie between two rescorings, or more."""

    STEPS = 8
    """A multiple of every preset's interval."""

    def __init__(self, plan: Plan, contestant: Contestant, announce: Announcer) -> None:
        announce(f"fill the memory, {contestant.name}")
        self.config = _config(plan, contestant)
        self.host = _filled(self.config)
        self._batches = _batches(self.config, task=1)
        self._before = Costs(**asdict(self.host.costs))
        self._steps = 0
        self._announce = announce
        self._name = contestant.name

    def __call__(self) -> None:
        """Take the steps."""
        self._announce(f"time the steps, {self._name}")
        for batch in itertools.islice(self._batches, self.STEPS):
            self.host.observe(batch)
        self._steps += self.STEPS

    @property
    def passes(self) -> dict[str, float]:
        """Forward, backward and scored passes per stream example, of all turns so far."""
        examples = self._steps * self.config.batch
        before, after = asdict(self._before), asdict(self.host.costs)
        return {name: (after[name] - before[name]) / examples for name in after}


def targets(cells: Sequence[Cell]) -> tuple[Target, ...]:
    """What the library promises: time goes to passes, not to what surrounds them."""
    # GDumb's steps have no passes.
    overheads = [cell.ratio / cell.explained for cell in cells if cell.explained > 0]
    name = "times as long as its passes explain, for a step of any host"
    return (Target(name, "at most", 1.25, max(overheads, default=None)),)


def _config(plan: Plan, contestant: Contestant) -> VisionConfig:
    # Two memories per stream image, as in the preset, at every batch size.
    options = {"contrast_batch": 2 * plan.batch} if contestant.host == "xder" else {}
    return resolve(
        f"{DATASET}-small",
        contestant.host,
        contestant.select,
        width=plan.width,
        capacity=plan.capacity,
        batch=plan.batch,
        replay_batch=plan.batch,
        options=options,
    )


def _filled(config: VisionConfig) -> Host:
    """A host at the start of its second task; the first was long enough to fill its memory."""
    host = build_host(config)
    host.start_task()
    offered = config.capacity / host.options.get("offered", 1.0)
    for batch in itertools.islice(_batches(config, task=0), -(-int(offered) // config.batch) + 1):
        host.observe(batch)
    host.end_task(last=False)
    host.start_task()
    return host


def _batches(config: VisionConfig, task: int) -> Iterator[Batch]:
    """Endless noise with labels of a task."""
    spec, source = dataset_spec(config.dataset), generator_for(task, "random images")
    size = spec.num_classes // spec.tasks
    shape = (config.batch, *spec.shape)
    while True:
        images = torch.randint(256, shape, generator=source, dtype=torch.uint8)
        labels = torch.randint(size, (config.batch,), generator=source) + task * size
        yield Batch(images, labels, labels)


def _cell(
    contestant: Contestant, turns: dict[Contestant, Turn], seconds: dict[str, float], rounds: int
) -> Cell:
    other = contestant.against
    ours, theirs = (_work(turns[each]) for each in (contestant, other))
    return Cell(
        contestant.name,
        other.name,
        rounds,
        seconds[contestant.name] / Turn.STEPS,
        seconds[contestant.name] / seconds[other.name],
        **turns[contestant].passes,
        explained=ours / theirs,
    )


def _work(turn: Turn) -> float:
    return turn.passes["forward"] + BACKWARD * turn.passes["backward"]


def _table(cells: Sequence[Cell]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    columns = ("host", "ms", "forward", "scored", "backward", "against", "ratio", "explained")
    show: Callable[[float], str] = "{:.2f}".format
    rows = tuple(
        (
            cell.figure,
            milliseconds(cell.seconds),
            *(show(value) for value in (cell.forward, cell.scored, cell.backward)),
            cell.against,
            *(show(value) for value in (cell.ratio, cell.explained)),
        )
        for cell in cells
    )
    return columns, rows
