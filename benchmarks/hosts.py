"""What a stream step costs: every host against ER, and host + SPHERE against the host alone.

Steps are those of CIFAR-10's presets in the second task, with a full memory, on random images and
one thread. Passes are counted beside the time, because they explain most of it.
"""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from benchmarks import harness
from benchmarks.harness import TWO_DIGITS, Benchmark, Cell, at_most, column
from benchmarks.rendering import Progress
from benchmarks.timing import milliseconds
from sphere_replay.hosts import HOSTS, Batch, Host
from sphere_replay.randomness import generator_for
from sphere_replay.runs.job import Costs
from sphere_replay.vision.assembly import build_host
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.presets import resolve
from sphere_replay.vision.specs import dataset_spec

DATASET = "cifar10"
BASELINE = "er"
WITH_SPHERE = ("er", "er-ace", "xder", "puridiver")
"""Hosts that the paper puts SPHERE into."""
BACKWARD = 2
"""A backward pass takes about as long as two forward passes: it computes two gradients."""


@dataclass(frozen=True)
class Plan(harness.Plan):
    """Which hosts, at what size."""

    width: int = 20
    capacity: int = 500
    batch: int = 32
    hosts: tuple[str, ...] = tuple(HOSTS)
    least_seconds: float = 0.0


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """Every host of the plan, then those with SPHERE in them."""
    against = dict.fromkeys(plan.hosts, BASELINE)
    against |= {f"{host} + sphere": host for host in plan.hosts if host in WITH_SPHERE}
    progress.expect(len(against) * (1 + plan.least_rounds))
    turns = {name: Turn(plan, name, progress) for name in against}
    # Filling the memories was the warm-up.
    timing = plan.race(turns, each=Turn.STEPS, warm_up=False)

    cells = []
    for ours, theirs in against.items():
        cell = timing.cell(ours, theirs, **turns[ours].passes)
        cell["explained"] = turns[ours].work / turns[theirs].work
        # GDumb's steps have no passes.
        cell["unexplained"] = cell["ratio"] / cell["explained"] if cell["explained"] else None
        cells.append(cell)
    return cells


class Turn:
    """Some steps of a host whose memory is full: as many as lie between two rescorings, or more."""

    STEPS = 8
    """A multiple of every preset's interval."""

    def __init__(self, plan: Plan, name: str, progress: Progress) -> None:
        progress(f"fill the memory, {name}")
        self.config = _config(plan, name)
        self.host = _filled(self.config)
        self._batches = _batches(self.config, task=1)
        self._before = Costs(**asdict(self.host.costs))
        self._steps = 0
        self._progress = progress
        self._name = name

    def __call__(self) -> None:
        """Take the steps."""
        self._progress(f"time the steps, {self._name}")
        for batch in itertools.islice(self._batches, self.STEPS):
            self.host.observe(batch)
        self._steps += self.STEPS

    @property
    def passes(self) -> dict[str, float]:
        """Forward, backward and scored passes per stream example, of all turns so far."""
        examples = self._steps * self.config.batch
        before, after = asdict(self._before), asdict(self.host.costs)
        return {name: (after[name] - before[name]) / examples for name in after}

    @property
    def work(self) -> float:
        """Passes in units of a forward pass."""
        return self.passes["forward"] + BACKWARD * self.passes["backward"]


def _config(plan: Plan, name: str) -> VisionConfig:
    host, _, select = name.partition(" + ")
    # Two memories per stream image, as in the preset, at every batch size.
    options = {"contrast_batch": 2 * plan.batch} if host == "xder" else {}
    return resolve(
        f"{DATASET}-small",
        host,
        select or "uniform",
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
    offered = config.capacity / config.options.get("offered", 1.0)
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


BENCHMARK = Benchmark(
    title="Hosts",
    plan=Plan(),
    quick=Plan(width=8, capacity=32, batch=4, least_rounds=1),
    quick_targets=False,
    measure=measure,
    columns={
        "host": column("figure"),
        "ms": column("seconds", by=milliseconds),
        **{name: column(name, by=TWO_DIGITS) for name in ("forward", "scored", "backward")},
        "against": column("against"),
        **{name: column(name, by=TWO_DIGITS) for name in ("ratio", "explained")},
    },
    targets=(
        # Time goes to passes, not to what surrounds them.
        at_most(1.25, "times as long as its passes explain, for a step of any host", "unexplained"),
    ),
    setting=lambda plan: (
        f"ResNet-18 of width {plan.width}, {plan.batch} + {plan.batch} images, "
        f"K = {plan.capacity}, random images of CIFAR-10's shape."
    ),
    legend="""
        A step is one stream batch of the second task: losses, replay, update, admission. Passes
        are images per stream image; `scored` are the forward passes in evaluation mode that
        only judge stored or offered images, and are part of `forward`. `ratio` is the time of a
        step over that of a step of `against`; `explained` is the same ratio of forward + 2
        backward passes. Fits after a task are no part of a step: GDumb, PuriDivER and ABS pay
        for them with epochs over the memory, see the options of each host. One thread;
        processor time is measured, which other programs do not lengthen.
    """,
    notes="""
        X-DER pays for strong views: each step contrasts four views of 64 memories and of the
        stream batch, several times as many images as it learns from. SPHERE pays for scoring:
        two forwards over the memory every few steps. A scored pass is cheaper than others,
        because batch norms are folded into the convolutions and no graph is kept, so its steps
        take less time than their passes explain.
    """,
)
