"""A million memories: time, peak, approximate weights against exact ones, batches of a memory.

Features are those of classes, as a trained network has them: centers apart, and around each a cloud
that is long in a few directions and short in most. Standard normal ones, without any neighbourhood,
stand beside them.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import Benchmark, Cell, at_least, at_most, column, option, whole
from benchmarks.rendering import Progress
from benchmarks.timing import milliseconds, peak_memory
from sphere_replay.allocation import Allocation, Sphere, allocate
from sphere_replay.allocation.allocate import solve
from sphere_replay.allocation.certificate import certify
from sphere_replay.geometry import CellGeometry, Kept, SparseGeometry, build_geometry
from sphere_replay.memory import ClassBalanced, Memory
from sphere_replay.numeric import accumulation_dtype
from sphere_replay.replay import LossProportional, Uniform
from sphere_replay.replay.engine import Engine
from sphere_replay.scoring import Scores

DIM, BATCH = 128, 64
_PER_CLASS, _MOST_CLASSES = 1000, 1000
_SPREAD, _DECAY = 0.6, -0.75
"""Of a class around its center, and of its extents from the longest direction on."""
_WRONG = 0.4
"""Of the labels."""
_ONE_IN = 100
"""One memory of so many is new when they are scored again."""


@dataclass(frozen=True)
class Plan(harness.Plan):
    """Sizes, and how often the certificate is put to the test."""

    sizes: Sequence[int] = option(
        (100_000, 300_000, 1_000_000), "memories", type=whole(1000), nargs="+", metavar="M"
    )
    trials: int = option(100, "times the certificate is tested", type=whole(1), metavar="N")
    samples: int = option(10, "tests of the same weights", type=whole(1), metavar="N")
    trial_size: int = option(20_000, "memories in a test", type=whole(1000), metavar="M")
    rows: int = option(1_000_000, "rows of the memory", type=whole(1000), metavar="K")


def measure(plan: Plan, progress: Progress) -> Iterator[Cell]:
    """Allocations, then the certificate, then the memory."""
    middle, largest = sorted(plan.sizes)[len(plan.sizes) // 2], max(plan.sizes)
    calibrated = dict.fromkeys((middle, largest))
    progress.expect(len(plan.sizes) + len(calibrated) + 4 + 2 * plan.trials)
    before: Cell | None = None
    for kind, size in [*(("classes", m) for m in sorted(plan.sizes)), ("normal", min(plan.sizes))]:
        progress(f"m = {size}, {kind}")
        cell = _allocation(kind, size)
        if before is not None and kind == "classes":
            grown = math.log(cell["seconds"] / before["seconds"])
            cell["growth"] = grown / math.log(cell["m"] / before["m"])
        before = cell
        yield cell
    for size in calibrated:
        progress(f"m = {size}, calibrated")
        yield _allocation("classes", size, "calibrated")
    progress(f"m = {middle}, again")
    yield _again(middle)
    progress(f"m = {middle}, nearest others")
    yield from _nearest_others(middle)
    for kind in ("classes", "normal"):
        yield _coverage(kind, plan, progress)
    progress(f"a memory of {plan.rows} rows")
    yield from _memory(plan)


class Inputs(NamedTuple):
    """What an allocation is made of."""

    increments: Tensor
    """δ `[m]`: they vary over feature space, with noise and some spikes."""
    features: Tensor
    """h `[m, 128]`."""
    labels: Tensor
    """Classes `[m]`, of which 40% are wrong."""


def inputs(kind: str, size: int, seed: int = 0) -> Inputs:
    """So many memories of `classes`, or `normal` ones."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator)
    features = draw(size, DIM)
    classes = min(_MOST_CLASSES, max(1, size // _PER_CLASS))
    belongs = torch.randint(classes, (size,), generator=generator)
    if kind == "classes":
        extents = torch.arange(1, DIM + 1) ** _DECAY
        turn = torch.linalg.qr(draw(DIM, DIM)).Q * (extents * math.sqrt(DIM) / extents.norm())
        centers = draw(classes, DIM)
        parts = (torch.split(each, 1 << 14) for each in (features, belongs))
        for part, labels in zip(*parts, strict=True):
            part.copy_(centers[labels] + _SPREAD * part @ turn.T)
    risk = 0.3 * features @ draw(DIM) / features.norm(dim=1)
    spikes = torch.rand(size, generator=generator) * (torch.rand(size, generator=generator) < 0.05)
    wrong = torch.rand(size, generator=generator) < _WRONG
    others = torch.randint(classes, (size,), generator=generator)
    return Inputs(risk + 0.1 * draw(size) + spikes, features, torch.where(wrong, others, belongs))


def workload(kind: str, size: int, recipe: str) -> Callable[[], Allocation]:
    """An allocation on inputs of its own."""
    increments, features, labels = inputs(kind, size)
    chosen = Sphere.calibrated() if recipe == "calibrated" else Sphere.vision()
    votes = labels if chosen.agreement > 0 else None
    return lambda: allocate(increments, features, chosen, labels=votes, geometry="cells")


def _allocation(kind: str, size: int, recipe: str = "vision") -> Cell:
    work = workload(kind, size, recipe)
    start = perf_counter()
    found = work()
    seconds = perf_counter() - start
    del work
    assert found.error is not None
    assert isinstance(found.geometry, CellGeometry)
    plans = [found.geometry.plan(eps).why.partition(":")[0] for eps in (found.eps_s, found.eps_t)]
    options = {"kind": kind, "recipe": recipe}
    peak = peak_memory(f"{__name__}:workload", {**options, "size": size}, {**options, "size": 1000})
    return {
        "figure": f"allocate, {kind}" + (f", {recipe}" if recipe != "vision" else ""),
        "m": size,
        "seconds": seconds,
        "peak_mib": peak,
        "certified": 100 * found.error.total_variation,
        "how": ", ".join(dict.fromkeys(plans)),
    }


def _again(size: int) -> Cell:
    """A rescoring of memories that are mostly the same: who is, stays in the same cell."""
    increments, features, _ = inputs("classes", size)
    before = allocate(increments, features, geometry="cells").grouping
    fresh = inputs("classes", size, seed=1).features[: size // _ONE_IN]
    features[torch.arange(len(fresh)) * _ONE_IN] = fresh
    start = perf_counter()
    found = allocate(increments, features, geometry="cells", grouping=before)
    seconds = perf_counter() - start
    assert found.error is not None
    return {
        "figure": f"again, one in {_ONE_IN} new",
        "m": size,
        "seconds": seconds,
        "certified": 100 * found.error.total_variation,
    }


def _nearest_others(size: int) -> Iterator[Cell]:
    """Pairs of nearest memories alone: searched for, and then again with features that stayed."""
    increments, features, labels = inputs("classes", size)
    before: Kept | None = None
    for name in ("nearest others", "nearest others, again"):
        start = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the page says how poor it is
            found = allocate(
                increments,
                features,
                Sphere.calibrated(),
                labels=labels,
                geometry="sparse",
                grouping=before,
            )
        seconds, before = perf_counter() - start, found.grouping
        assert found.error is not None
        assert isinstance(found.geometry, SparseGeometry)
        yield {
            "figure": f"{name}, classes, calibrated",
            "m": size,
            "seconds": seconds,
            "certified": 100 * found.error.total_variation,
            "how": f"{found.geometry.neighbors.looked_for} each",
        }


def _coverage(kind: str, plan: Plan, progress: Progress) -> Cell:
    """How often the true error lies inside; trials on the same memories share both solutions."""
    true, certified, recipe = [], [], Sphere.vision()
    for trial in range(plan.trials):
        progress(f"certificate, {kind}, {trial + 1} of {plan.trials}")
        memories, sample = divmod(trial, plan.samples)
        if sample == 0:
            increments, features, _ = inputs(kind, plan.trial_size, seed=memories + 1)
            geometry = build_geometry(features, recipe.distance, kind="cells")
            delta = increments.to(accumulation_dtype(geometry.device))
            found, trace = solve(delta, geometry, recipe)
            error = 100 * _variation(found, allocate(increments, features, geometry="exact"))
        bound = certify(found, trace, delta, geometry, recipe, seed=trial)
        assert bound is not None
        true.append(error)
        certified.append(100 * bound.total_variation)
    inside = sum(error <= bound for error, bound in zip(true, certified, strict=True))
    return {
        "figure": f"certificate, {kind}",
        "m": plan.trial_size,
        "true": max(true),
        "certified": max(certified),
        "inside": 100 * inside / plan.trials,
        "trials": plan.trials,
    }


def _variation(one: Allocation, other: Allocation) -> float:
    return float((one.probabilities - other.probabilities).double().abs().sum()) / 2


def _memory(plan: Plan) -> Iterator[Cell]:
    """Adding, drawing and saving a batch; only what a batch takes, nothing that is done once."""
    generator = torch.Generator().manual_seed(1)
    memory = Memory(plan.rows, generator=torch.Generator().manual_seed(0))
    balanced = Memory(plan.rows, ClassBalanced(), generator=torch.Generator().manual_seed(0))
    for start in range(0, plan.rows, 1 << 16):
        count = min(1 << 16, plan.rows - start)
        often = torch.rand(count, generator=generator).square()  # some classes more than others
        memory.add(x=torch.zeros(count, DIM), y=torch.zeros(count, dtype=torch.int64))
        balanced.add(y=(often * _MOST_CLASSES).long())
    batch = {"x": torch.ones(BATCH, DIM), "y": torch.ones(BATCH, dtype=torch.int64)}
    weights = torch.rand(plan.rows, generator=generator)

    def score(slots: Tensor, *, increments: bool = True) -> Scores:
        return Scores(weights, weights)

    def of_any_class() -> Tensor:
        return torch.randint(_MOST_CLASSES, (BATCH,), generator=generator)

    def saved() -> object:
        mark = memory.mark
        memory.add(**batch)
        return memory.changes(mark)

    def saved_balanced() -> object:
        mark = balanced.mark
        balanced.add(y=of_any_class())
        return balanced.changes(mark)

    calls: dict[str, Callable[[], object]] = {
        "add": lambda: memory.add(**batch),
        "changes": saved,
        "add, balanced": lambda: balanced.add(y=of_any_class()),
        "changes, balanced": saved_balanced,
    }
    for name, selection in (("uniformly", Uniform()), ("by weight", LossProportional())):
        engine = Engine(
            memory, selection, generator=torch.Generator().manual_seed(2), every=1 << 40
        )
        calls[f"draw {name}"] = partial(engine.draw, BATCH, score)

    def saved_replay() -> object:
        mark = engine.mark
        engine.draw(BATCH, score)
        return engine.changes(mark)

    calls["changes of replay"] = saved_replay
    timing = plan.race(calls)
    for name, seconds in timing.seconds.items():
        yield {"figure": f"memory: {name}", "m": plan.rows, "batch": seconds}


def _a_million(cell: Cell) -> bool:
    return cell["m"] >= 1_000_000 and str(cell["figure"]).startswith("allocate")


PERCENT: Callable[[float], str] = "{:.3f}".format

BENCHMARK = Benchmark(
    title="A million memories",
    threads=None,
    plan=Plan(),
    quick=Plan(sizes=(2000, 4000), trials=2, trial_size=2000, rows=100_000, least_seconds=0.05),
    measure=measure,
    columns={
        "figure": column("figure"),
        "m": column("m"),
        "seconds": column("seconds", by="{:.1f}".format),
        "growth": column("growth", by="m^{:.2f}".format),
        "MiB": column("peak_mib", by="{:.0f}".format),
        "how": column("how"),
        "certified TV %": column("certified", by=PERCENT),
        "true TV %": column("true", by=PERCENT),
        "inside %": column("inside", by="{:.0f}".format),
        "ms for a batch": column("batch", by=milliseconds),
    },
    targets=(
        at_most(
            120.0,
            "seconds, a million memories in classes",
            "seconds",
            where=_a_million,
        ),
        at_most(
            2048.0,
            "MiB beyond the features, a million memories",
            "peak_mib",
            where=_a_million,
        ),
        at_most(
            1.0,
            "% of certified total variation, classes",
            "certified",
            where=lambda cell: cell["figure"].startswith("allocate, classes"),
        ),
        at_most(1.2, "power of m that time grows with", "growth"),
        at_least(95.0, "% of true errors inside the certificate", "inside"),
        at_most(0.010, "seconds for a batch, a memory of a million rows", "batch"),
    ),
    quick_targets=False,
    legend=f"""
        Whole allocations with `Sphere.vision()`, d = {DIM}, float32, on all threads, cells and
        certificate included; `growth` is over the size above. `calibrated` is `Sphere.calibrated()`
        instead, with labels of which {_WRONG:.0%} are wrong. Features are `classes`: {_PER_CLASS}
        memories in each, up to {_MOST_CLASSES} classes, each class a cloud whose extents fall like
        the power {_DECAY} from the longest direction on; `normal` is standard normal. `how` is the
        way that the kernels took: sparse (near cells alone), low rank (moments), or mixed. MiB
        are peaks beyond the inputs, in a process of its own. A certificate holds with confidence
        0.99.

        The row named `again` is an allocation that was told how the memories lay in the one before;
        one in {_ONE_IN} has other features since, and all others stay in their cells.
        `nearest others` is `geometry="sparse"`, for which faiss searches, and with `again` that
        with the pairs it found.

        Rows named `certificate` compare with `geometry="exact"`: the largest true and certified
        errors, and the share of trials in which the first was below the second. Memories are drawn
        anew every few trials (`--samples`); those between certify the same weights by other samples
        of rows. Rows named `memory` are the time of one batch of {BATCH} rows of {DIM}
        numbers in a full memory; `changes` adds one, too, and takes what a checkpoint saves of it,
        `changes of replay` what it saves of a draw between two rescorings;
        `balanced` is class-balanced admission of {_MOST_CLASSES} classes, unequally frequent.
    """,
    notes="""
        All but the search of cells is products of small matrices and exponentials, for near pairs
        and between cells. The first are proportional to m, the second to the square of the number
        of cells, which stops at 8,192. The more classes there are, the more of the kernel's mass is
        far and spread thinly over many memories: moments of cells carry it. Normal features have no
        cells to speak of, kernels of `Sphere.vision()` reach nearly everybody there, and moments
        alone carry them.

        Lists of nearest others lose on such features: in 128 directions even a kernel of 40
        effective neighbours has a part of its mass with hundreds of memories, which cells hold and
        a list does not. Searching for them takes most of their time, and falls away where features
        stay.
    """,
)
