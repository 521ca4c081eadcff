"""What training costs: the runner against a bare loop, SPHERE against plain replay, a rescoring.

Every figure is a ratio of medians taken in turns in one run. Steps are those of Split MNIST with an
MLP on one thread; rescorings are those of the MLP, and of ResNet-18 on all threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from benchmarks import harness
from benchmarks.digits import mnist_folder, random_images
from benchmarks.harness import TWO_DIGITS, Benchmark, Cell, at_most, column, named, option, whole
from benchmarks.rendering import Progress
from benchmarks.steps import step_cells
from benchmarks.timing import milliseconds, threads
from sphere_replay.allocation import Allocation, Sphere, allocate
from sphere_replay.randomness import generator_for
from sphere_replay.scoring import Scores, score
from sphere_replay.vision.datasets import load_images
from sphere_replay.vision.models import build_model
from sphere_replay.vision.specs import dataset_spec
from sphere_replay.vision.transforms import pipeline


@dataclass(frozen=True)
class Scored:
    """A network and how many stored inputs it scores; without a width it is the MLP."""

    memories: int
    width: int | None = None

    @property
    def name(self) -> str:
        """The network, for people."""
        return "MLP" if self.width is None else f"ResNet-18, width {self.width}"

    @property
    def setting(self) -> str:
        """The network and the memory, for people."""
        return f"{self.name}, m = {self.memories}"


RANDOM = "random images and labels of MNIST's shape"
MLP_500, NARROW_500, FULL_500 = Scored(500), Scored(500, 20), Scored(500, 64)


@dataclass(frozen=True)
class Plan(harness.Plan):
    """Sizes, where MNIST is, and how many threads the large networks get."""

    data: Path | None = option(
        None,
        "folder with mnist/train.parquet (default: $SPHERE_DATA, or else random images)",
        type=Path,
        metavar="DIR",
    )
    threads: int | None = option(
        None,
        "threads of the ResNets (default: all; on a busy machine only 1 gives fair figures)",
        type=whole(1, 256),
        metavar="N",
    )
    images: int = 60_000
    """Random images, where there is no MNIST."""
    capacity: int = 500
    steps: int = 16
    """Steps of a turn: some intervals between rescorings, and enough to fill the memory."""
    networks: tuple[Scored, ...] = (MLP_500, NARROW_500, FULL_500)
    least_rounds: int = 5
    least_seconds: float = 5.0


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """Time the steps, then the rescorings."""
    folder = mnist_folder(plan.data)
    data = random_images(plan.images) if folder is None else load_images("mnist", folder)
    progress.expect(1 + len(plan.networks))
    progress("training steps")
    with threads(1):
        cells = step_cells(plan, data, capacity=plan.capacity, steps=plan.steps)
    for scored in plan.networks:
        progress(f"rescoring, {scored.name}")
        alone = scored.width is None
        with threads(1 if alone else plan.threads or torch.get_num_threads()):
            cells += _rescoring(plan, scored)
    return cells


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
    features = scores.features
    assert features is not None

    def reallocate() -> Allocation:
        return allocate(scores.increments, features, recipe)

    def compare(contestants: dict[str, Callable[[], object]], **more: object) -> Cell:
        # Two at a time: a third contestant would leave its cache to only one of them.
        shared = {"setting": scored.setting, "threads": torch.get_num_threads()}
        return plan.race(contestants).cell(*contestants, **{**shared, **more})

    detail = f"{scored.setting}, d = {features.shape[1]}"
    return [
        compare({"rescoring": rescore, "two forwards": forward_twice}),
        compare({"allocation": reallocate, "rescoring": rescore}, setting=detail),
    ]


def _setting(plan: Plan) -> str:
    found = mnist_folder(plan.data) is not None
    return f"Data of this run: {'MNIST' if found else RANDOM}."


def _of(name: str, *scored: Scored) -> Callable[[Cell], bool]:
    """Whether a cell has this name, and is about one of these networks."""
    settings = tuple(each.setting for each in scored)
    return lambda cell: cell["figure"] == name and cell["setting"].startswith(settings)


BENCHMARK = Benchmark(
    title="Training",
    threads=None,
    plan=Plan(),
    quick=Plan(images=10_000, networks=(MLP_500, Scored(64, 8)), least_rounds=3, least_seconds=0.3),
    measure=measure,
    columns={
        "what": column("figure"),
        "setting": column("setting"),
        "threads": column("threads"),
        "ms": column("seconds", by=milliseconds),
        "images/s": column("images_per_second", by="{:,.0f}".format),
        "against": column("against"),
        "ratio": column("ratio", by=TWO_DIGITS),
    },
    targets=(
        at_most(1.1, "times a bare loop for a step of ER", "ratio", where=named("ER")),
        at_most(
            1.15,
            "times two forwards for a rescoring, MLP",
            "ratio",
            where=_of("rescoring", MLP_500),
        ),
        at_most(
            0.7,
            "times two forwards for a rescoring, ResNet-18",
            "ratio",
            where=_of("rescoring", NARROW_500, FULL_500),
        ),
        at_most(
            0.1,
            "of a rescoring for an allocation, ResNet-18, width 20",
            "ratio",
            where=_of("allocation", NARROW_500),
        ),
    ),
    setting=_setting,
    legend="""
        Steps: experience replay on the first task of Split MNIST with 40% of the labels wrong;
        MLP 784-100-100-10, 64 images of the stream and 64 of a full memory of 500, one thread.
        `ER` is the runner with all that a run records, but without evaluations; the bare loop
        is plain PyTorch with nothing but the two losses, SGD and a reservoir. `ER + SPHERE`
        rescores the whole memory at every fourth step; its parts are in units of a step of ER
        and add up to its ratio. Images are those of the stream.

        Rescorings: the losses of m stored images before and after the virtual step, and their
        features, against two plain forwards over the same memory in eval mode without
        gradients, each preparing the images as the network takes them and running all m at
        once. Allocations: of the features of these rescorings, d numbers each. Where one thread
        works, its processor time is measured, which other programs do not lengthen.
    """,
    notes="""
        A step of the MLP is short, so whatever is done per step shows: checks, the figures for
        the log, the draw, and above all an allocation, which takes longer than two forwards of
        so small a network. For a ResNet-18 the same allocation is a small part of a rescoring,
        and a rescoring every fourth step is what SPHERE costs.

        A rescoring needs two forwards by definition. It can take less time than two plain ones
        where batch norms are folded into the convolutions and images pass in groups whose
        activations stay in the cache; the MLP has nothing to fold, and pays for a step that is
        taken and undone bit for bit.
    """,
)
