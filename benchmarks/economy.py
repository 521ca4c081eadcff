"""What SPHERE costs beside ER, and what it brings: the published schedule and the economical one.

Every ratio is one of medians taken in turns in one run, on one thread; a turn is a whole task, so
that the rescorings of its beginning count as often as they happen. Accuracies come from saved runs.
"""

import tempfile
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import harness
from benchmarks.digits import mnist_folder, random_images
from benchmarks.harness import TWO_DIGITS, Benchmark, Cell, at_least, at_most, column, option, whole
from benchmarks.instruct import trainer_of, updating
from benchmarks.rendering import Progress
from benchmarks.timing import milliseconds
from sphere_replay.instruct.presets import resolve as resolve_instruct
from sphere_replay.reports.collection import load_collection
from sphere_replay.reports.statistics import PairedDifference, paired_difference
from sphere_replay.vision.datasets import ImageData, load_images
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve

ER, PUBLISHED, ECONOMICAL = "ER", "published", "economical"
FORWARDS = "economical, reuse 0"
MLP, RESNET, INSTRUCT = "MLP on MNIST", "ResNet-18, width 20", "tiny T5"
DIGITS = "ResNet-18, width 8, on MNIST"

SETTINGS = {"mlp": MLP, "resnet": RESNET, "digits": DIGITS, "instruct": INSTRUCT}
"""By their names on the command line."""

PLAIN = (MLP, INSTRUCT)
"""Settings whose training passes stand for forwards of the economical schedule."""

BASELINE = "ER"


class Saved(NamedTuple):
    """Where finished runs are, and what is read off them."""

    stem: str
    """Of the file with ER and the published schedule; `-economical` and `-forwards` are beside."""
    treated: str = "ER + calibrated"
    metric: str = "tail_accuracy"


SAVED = {
    MLP: Saved("mnist"),
    RESNET: Saved("cifar10-small"),
    DIGITS: Saved("mnist-resnet"),
    INSTRUCT: Saved("instruct", "SPHERE", "final_accuracy"),
}


@dataclass(frozen=True)
class Plan(harness.Plan):
    """Sizes of the steps, and where saved results lie."""

    data: Path | None = option(
        None,
        "folder with mnist/train.parquet (default: $SPHERE_DATA, or else random images)",
        type=Path,
        metavar="DIR",
    )
    settings: tuple[str, ...] = option(
        tuple(SETTINGS),
        "measure these alone (default: all)",
        nargs="+",
        choices=tuple(SETTINGS),
    )
    results: Path = option(
        Path("results/economy"), "folder of saved runs", type=Path, metavar="DIR"
    )
    capacity: int = 500
    images: int = 60_000
    """Random images, where there is no MNIST."""
    photographs: int = option(
        10_000,
        "random images of CIFAR-10's shape, a fifth of them in a task (default: 10000)",
        type=whole(1000),
        metavar="N",
    )
    digits: int = 10_000
    """Images of the stream that a ResNet on MNIST sees."""
    width: int = 20
    updates: int = 40
    """Updates of a language model in a task."""
    warm_up: int = 50
    texts: int = 300
    """Capacity of its memory."""


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """Each of the settings: ER, and SPHERE by both schedules."""
    measures = {
        "mlp": _mlp_cells,
        "resnet": _resnet_cells,
        "digits": _digits_cells,
        "instruct": _instruct_cells,
    }
    progress.expect(len(plan.settings))
    cells = []
    for name in plan.settings:
        progress(SETTINGS[name])
        cells += measures[name](plan)
    return cells


def _mlp_cells(plan: Plan) -> list[Cell]:
    return _vision_cells(plan, MLP, "mnist", _digits(plan))


def _digits_cells(plan: Plan) -> list[Cell]:
    network = {"network": "resnet18", "width": 8, "limit": plan.digits}
    return _vision_cells(plan, DIGITS, "mnist", _digits(plan), **network)


def _digits(plan: Plan) -> ImageData:
    folder = mnist_folder(plan.data)
    return random_images(plan.images) if folder is None else load_images("mnist", folder)


def _resnet_cells(plan: Plan) -> list[Cell]:
    data = random_images(plan.photographs, "cifar10")
    return _vision_cells(plan, RESNET, "cifar10-small", data, width=plan.width, limit=None)


def contestants(setting: str) -> list[str]:
    """Who is measured in a setting."""
    return [ER, PUBLISHED, ECONOMICAL] + [FORWARDS] * (setting in PLAIN)


def settings_of(contestant: str, select: str) -> dict[str, Any]:
    """Selection and schedule of a contestant."""
    if contestant == ER:
        return {"select": "uniform"}
    if contestant == FORWARDS:
        return {"select": select, "schedule": ECONOMICAL, "reuse": 0}
    return {"select": select, "schedule": contestant}


def _vision_cells(
    plan: Plan, setting: str, preset: str, data: ImageData, **settings: Any
) -> list[Cell]:
    jobs = {
        name: VisionJob(
            resolve(
                preset,
                capacity=plan.capacity,
                evaluate_every=None,
                **settings,
                **settings_of(name, "sphere-calibrated"),
            ),
            data,
        )
        for name in contestants(setting)
    }
    first = jobs[ER]
    batch = first.config.batch
    counts = [len(list(first.stream.batches(task, batch))) for task in (0, 1)]
    # A task's last step is for evaluations; its first one starts it.
    task = range(counts[0], counts[0] + counts[1] - 1)
    filling = range(min(counts[0] - 1, -(-plan.capacity // batch) + 1))

    def turn(job: VisionJob) -> Callable[[], None]:
        for step in filling:
            job.advance(step)

        def take() -> None:
            for step in task:
                job.advance(step)

        return take

    # Filling the memories was the warm-up.
    turns = {name: turn(job) for name, job in jobs.items()}
    timing = plan.race(turns, each=len(task), warm_up=False)
    saved = accuracies(plan.results, SAVED[setting])
    return [timing.cell(name, ER, setting=setting, **saved.get(name, {})) for name in jobs]


def _instruct_cells(plan: Plan) -> list[Cell]:
    config = resolve_instruct(
        "instruct-tiny", corpus="generated", capacity=plan.texts, warm_up=plan.warm_up, rank=0
    )

    def turn(home: Path, contestant: str) -> Callable[[], None]:
        ours = replace(config, **settings_of(contestant, "sphere"))
        trainer, rows = trainer_of(ours, None, home)
        update = updating(trainer, rows, ours.batch)

        def take(updates: int = plan.updates) -> None:
            trainer.replay.start_task()
            for _ in range(updates):
                update()

        take(-(-plan.texts // ours.batch))  # fills the memory
        return take

    with tempfile.TemporaryDirectory() as home:
        turns = {name: turn(Path(home), name) for name in contestants(INSTRUCT)}
        timing = plan.race(turns, each=plan.updates)
    saved = accuracies(plan.results, SAVED[INSTRUCT])
    return [timing.cell(name, ER, setting=INSTRUCT, **saved.get(name, {})) for name in turns]


def accuracies(folder: Path, saved: Saved) -> dict[str, Cell]:
    """Figures of saved runs by contestant: accuracy, and that over ER's and full scoring's.

    Accuracies are in points, means over the seeds that both sides have; what no file has is left
    out.
    """
    full = folder / f"{saved.stem}.json"
    runs = {
        ER: _saved(full, BASELINE),
        PUBLISHED: _saved(full, saved.treated),
        ECONOMICAL: _saved(folder / f"{saved.stem}-economical.json", saved.treated),
        FORWARDS: _saved(folder / f"{saved.stem}-forwards.json", saved.treated),
    }
    reached = {
        name: {seed: 100 * run["metrics"][saved.metric] for seed, run in found.items()}
        for name, found in runs.items()
    }
    cells: dict[str, Cell] = {
        name: {"accuracy": sum(found.values()) / len(found)}
        for name, found in reached.items()
        if found
    }
    for name in (PUBLISHED, ECONOMICAL, FORWARDS):
        gain = paired_difference(reached[name], reached[ER])
        if gain is not None:
            passes = [run["costs"]["scored_per_example"] for run in runs[name].values()]
            cells[name] |= {"gain": _figures(gain), "scored": sum(passes) / len(passes)}
    for name in (ECONOMICAL, FORWARDS):
        kept = paired_difference(reached[name], reached[PUBLISHED])
        if kept is not None:
            cells[name]["kept"] = _figures(kept)
    return cells


def _saved(path: Path, method: str) -> dict[Hashable, Cell]:
    """Finished runs of a method by what pairs them; none if there is no such file."""
    runs = load_collection(path).runs if path.exists() else []
    return {run.get("pair", run["seed"]): run for run in runs if run["method"] == method}


def _figures(difference: PairedDifference) -> Cell:
    low, high = difference.interval or (None, None)
    return {"mean": difference.mean, "low": low, "high": high, "pairs": difference.pairs}


def _points(difference: Cell) -> str:
    within = ""
    if difference["low"] is not None:
        within = f" [{difference['low']:+.1f}, {difference['high']:+.1f}]"
    return f"{difference['mean']:+.1f}{within}"


def _setting(plan: Plan) -> str:
    images = "MNIST" if mnist_folder(plan.data) else "random images of MNIST's shape"
    return f"Steps of the MLP are on {images}, those of the ResNet on random images."


def _economical(setting: str) -> Callable[[Cell], bool]:
    return lambda cell: (cell["setting"], cell["figure"]) == (setting, ECONOMICAL)


BENCHMARK = Benchmark(
    title="Economy",
    plan=Plan(least_seconds=0.0),
    quick=Plan(
        capacity=64,
        images=3000,
        photographs=600,
        digits=600,
        width=8,
        updates=6,
        warm_up=1,
        texts=48,
        least_rounds=2,
        least_seconds=0.0,
    ),
    quick_targets=False,
    measure=measure,
    columns={
        "setting": column("setting"),
        "schedule": column("figure"),
        "ms": column("seconds", by=milliseconds),
        "over ER": column("ratio", by=TWO_DIGITS),
        "scored": column("scored", by=TWO_DIGITS),
        "accuracy": column("accuracy", by="{:.1f}".format),
        "accuracy over ER": column("gain", by=_points),
        "over published": column("kept", by=_points),
        "seeds": column("gain.pairs"),
    },
    targets=(
        at_most(1.25, "times ER for a step of ResNet-18", "ratio", where=_economical(RESNET)),
        at_most(1.5, "times ER for a step of the MLP", "ratio", where=_economical(MLP)),
        at_least(
            -0.5,
            "points of tail accuracy over full scoring, MLP",
            "kept.mean",
            where=_economical(MLP),
        ),
        at_least(
            -0.5,
            "points of tail accuracy over full scoring, ResNet-18",
            "kept.mean",
            where=_economical(RESNET),
        ),
        at_least(
            -0.5,
            "points of tail accuracy over full scoring, ResNet-18 on digits",
            "kept.mean",
            where=_economical(DIGITS),
        ),
    ),
    setting=_setting,
    legend="""
        A step is a stream batch of a task that begins with a full memory; times are means over
        the whole task, its first rescorings included. Selections are `sphere-calibrated` for
        images, with 500 memories, and `sphere` for the tiny T5, with 300. `published` rescores
        all of them at the interval of its preset; `economical` is the schedule of that name
        with its default numbers; with `reuse 0` training passes stand for no forwards, which with
        batch norm they never do. `over ER` is the time of a step over that with uniform replay.
        One thread; processor time is measured, which other programs do not lengthen.

        Accuracies, and scored passes per stream example, are those of saved runs on evaluation
        seeds, with which nothing was chosen: of images tail accuracy in percent with 40% of the
        labels wrong, of the tiny T5 that over all tasks at the end, of a generated corpus; and mean
        paired differences in points, with 95% intervals, to ER and to the published schedule. Those
        of the wide ResNet are of 10,000 photographs, where chance is 10%, those of the narrow one
        of 10,000 digits. Runs of the tiny T5 remember 64 texts, who all are landmarks.
    """,
    notes="""
        For a ResNet-18 and for language models a rescoring is its forwards: landmarks save a
        third of them, longer intervals the rest. Intervals grow within a task, and a task of
        few steps (`--photographs`) ends before they have: it is rescored about as often as by
        the published schedule then, and landmarks alone save. For the MLP a rescoring is the
        allocation, which landmarks do not make shorter; fewer rescorings do, and forwards that are
        saved cost about what it takes to keep what training computed. What remains is a weighted
        draw in every step.
    """,
)
