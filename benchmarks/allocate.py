"""How fast an allocation is: against the paper's own formulas, a bare GEMM, and its own tiles.

Features are standard normal, so kernels are wide. Further cells show what is usual outside of a
benchmark: a busy machine, features of a trained network, calibrated scales. Every figure is a ratio
of medians taken in turns in one run, in float32 and on all threads.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks import before, harness
from benchmarks.conditions import busy_process, trained_features
from benchmarks.harness import (
    TWO_DIGITS,
    Benchmark,
    Cell,
    at_least,
    at_most,
    column,
    option,
    whole,
)
from benchmarks.inputs import inputs
from benchmarks.naive import available_peers, naive_weights, topk_weights
from benchmarks.rendering import Progress
from benchmarks.timing import milliseconds, peak_memory
from sphere_replay.allocation import Sphere, allocate
from sphere_replay.geometry import DenseGeometry, SquaredEuclidean, TiledGeometry
from sphere_replay.geometry.build import DEFAULT_BUDGET
from sphere_replay.geometry.threads import undisturbed
from sphere_replay.geometry.tiles import TileGeometry

SIZES, DIMS = (500, 1000, 2000, 4000, 8000, 16000, 32000), (100, 512, 1024)

Call = Callable[[], object]

BUSY, TRAINED, CALIBRATED = "busy", "trained", "calibrated"
TRAINED_CALIBRATED = f"{TRAINED}, {CALIBRATED}"
"""What is unusual about a cell."""

_TILED_FROM = math.isqrt(2 * DEFAULT_BUDGET // torch.float32.itemsize)
_FARTHEST = 25
"""The neighbour that `Sphere.vision()` looks for."""

RATIOS = {
    "naive / sphere": ("naive", "sphere"),
    "topk / sphere": ("topk", "sphere"),
    "before / sphere": ("before", "sphere"),
    "sphere / gemm": ("sphere", "gemm"),
    "sphere / gemm into": ("sphere", "gemm_into"),
    "sphere / passes": ("sphere", "passes"),
    "tiled / dense": ("tiled", "dense"),
    "unkept / dense": ("unkept", "dense"),
    "pot / sphere": ("pot", "sphere"),
    "keops / sphere": ("keops", "sphere"),
    "trained / normal": ("sphere", "normal"),
}
"""By heading: whose seconds are divided by whose."""


@dataclass(frozen=True)
class Plan(harness.Plan):
    """Which sizes, and from which on it would take too long or too much memory."""

    sizes: Sequence[int] = option(SIZES, "memories", type=whole(2), nargs="+", metavar="M")
    dims: Sequence[int] = option(DIMS, "features per memory", type=whole(2), nargs="+", metavar="D")
    before: Path | None = option(
        None, "an earlier source tree to compare with", type=Path, metavar="SRC"
    )
    before_up_to: int = 8000
    main_dim: int = 512
    """Memory is measured at this d only, and so is everything from `main_dim_from` on."""
    main_dim_from: int = 32000
    naive_up_to: int = 8000
    gemm_into_up_to: int = 16000
    passes_up_to: int = 1024
    dense_up_to: int = 16000
    tiled_from: int = 16000
    peers_up_to: int = 1000
    warm_up_below: int = 8000
    """Calls of seconds need no warm-up."""
    busy_at: Sequence[int] = (500, 4000)
    trained_at: Sequence[int] = (500, 4000)
    calibrated_at: Sequence[int] = (500,)
    """Sizes of the further cells, among those that are measured anyway."""

    def cells(self) -> Iterator[tuple[int, int]]:
        """Pairs (m, d), small ones first."""
        for size in sorted(set(self.sizes)):
            for dim in sorted(set(self.dims)):
                if size < self.main_dim_from or dim == self._main_dim:
                    yield size, dim

    def further_cells(self) -> Iterator[tuple[str, int, int]]:
        """Cases with m and d."""
        sizes = {
            BUSY: self.busy_at,
            TRAINED: self.trained_at,
            CALIBRATED: self.calibrated_at,
            TRAINED_CALIBRATED: self.trained_at,
        }
        for case, (size, dim) in product(sizes, self.cells()):
            if size in sizes[case] and (case != BUSY or dim == self._main_dim):
                yield case, size, dim

    def measures_memory(self, dim: int) -> bool:
        """Whether peaks are measured at this d."""
        return dim == self._main_dim

    @property
    def _main_dim(self) -> int:
        return self.main_dim if self.main_dim in self.dims else max(self.dims)


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """Times and peaks of every m and d, and times of the further cells."""
    pairs, further = list(plan.cells()), list(plan.further_cells())
    progress.expect(len(pairs) + len(further))
    cells = []
    for size, dim in pairs:
        progress(f"m = {size}, d = {dim}")
        warm_up = size < plan.warm_up_below
        calls = _contestants(plan, size, dim)
        with ExitStack() as others:
            if plan.before is not None and size <= plan.before_up_to:
                calls["before"] = others.enter_context(before.allocations(plan.before, size, dim))
            timing = plan.race(calls, warm_up=warm_up)
        seconds = timing.seconds
        if "tiled" not in seconds and size >= plan.tiled_from:
            seconds["tiled"] = seconds["sphere"]  # the library's own choice at this size
        measured = [name for name in ("sphere", "naive") if name in seconds]
        peaks = {
            name: peak_memory(
                f"{__name__}:workload",
                {"name": name, "size": size, "dim": dim},
                {"name": name, "size": 256, "dim": dim},
            )
            for name in (measured if plan.measures_memory(dim) else ())
        }
        cell = {"m": size, "d": dim, "rounds": timing.rounds, "seconds": seconds}
        cells.append({**cell, "ratios": ratios(seconds), "peak_mib": peaks})
    for case, size, dim in further:
        progress(f"m = {size}, d = {dim}, {case}")
        cells.append(_further_cell(plan, case, size, dim))
    return cells


def _further_cell(plan: Plan, case: str, size: int, dim: int) -> Cell:
    increments, features = inputs(size, dim)
    unit = normalize(features, dim=1)
    calls: dict[str, Call] = {"gemm": lambda: unit @ unit.T}
    if case == BUSY:
        allocators = _allocators(increments, features)
        calls |= {name: allocators[name] for name in ("sphere", "naive", "topk")}
        with busy_process():
            timing = plan.race(calls)
    else:
        calibrated = case != TRAINED
        trained, labels = trained_features(size, dim)
        call = partial(
            allocate,
            increments,
            recipe=Sphere.calibrated() if calibrated else Sphere.vision(),
            labels=labels if calibrated else None,
        )
        normal = partial(call, features)
        calls |= (
            {"sphere": normal}
            if case == CALIBRATED
            else {"sphere": partial(call, trained), "normal": normal}
        )
        timing = plan.race(calls)
    cell = {"case": case, "m": size, "d": dim, "rounds": timing.rounds, "seconds": timing.seconds}
    return {**cell, "ratios": ratios(timing.seconds)}


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    """Those of RATIOS of which both sides were measured."""
    return {
        name: seconds[above] / seconds[below]
        for name, (above, below) in RATIOS.items()
        if above in seconds and below in seconds
    }


def workload(name: str, size: int, dim: int) -> Call:
    """One contestant on inputs of its own, for `peak_memory`."""
    increments, features = inputs(size, dim)
    return _allocators(increments, features)[name]


def _allocators(increments: Tensor, features: Tensor) -> dict[str, Call]:
    """Whole allocations by name; a geometry is built within the call, as `allocate` would."""
    recipe, distance = Sphere.vision(), SquaredEuclidean()

    def unkept() -> TileGeometry:
        # An eighth of the default budget for panels, and no kept tiles.
        return TileGeometry(
            distance.source(features), keep_bytes=0, panel_bytes=DEFAULT_BUDGET // 8
        )

    return {
        "sphere": lambda: allocate(increments, features, recipe),
        "naive": lambda: naive_weights(increments, features),
        "topk": lambda: topk_weights(increments, features),
        "dense": lambda: allocate(increments, DenseGeometry(distance.source(features)), recipe),
        "tiled": lambda: allocate(increments, TiledGeometry(distance.source(features)), recipe),
        "unkept": lambda: allocate(increments, unkept(), recipe),
    }


def _contestants(plan: Plan, size: int, dim: int) -> dict[str, Call]:
    """Whoever takes part at this size, in the order of their turns."""
    increments, features = inputs(size, dim)
    allocators = _allocators(increments, features)
    small = size <= plan.naive_up_to
    taking_part = {"sphere": True, "naive": small, "topk": small}
    if plan.tiled_from <= size <= plan.dense_up_to:
        # Where the library itself chooses tiles, `sphere` is `tiled`.
        held = size * (size + 1) // 2 * features.itemsize
        taking_part |= {"dense": True, "tiled": held <= DEFAULT_BUDGET, "unkept": True}
    calls = {name: allocators[name] for name, takes_part in taking_part.items() if takes_part}
    unit = normalize(features, dim=1)
    calls["gemm"] = lambda: unit @ unit.T
    if size <= plan.gemm_into_up_to:
        products = torch.empty(size, size)
        calls["gemm_into"] = lambda: torch.mm(unit, unit.T, out=products)
    if size <= plan.passes_up_to:
        calls["passes"] = _passes(unit)
    if size <= plan.peers_up_to:
        for name, peer in available_peers().items():
            calls[name] = partial(peer, increments, features)
    return calls


def _passes(unit: Tensor) -> Call:
    """The passes over C of a plain allocation, in one thread and in memory that is there already.

    Products, distances, parted rows, two kernels and two products with each of them.
    """
    size = len(unit)
    cost, parted, *kernels = torch.empty(4, size, size)
    vector = torch.ones(size)

    def passes() -> None:
        torch.mm(unit, unit.T, out=cost).mul_(-2).add_(2)
        parted.copy_(cost).numpy().partition(min(_FARTHEST, size - 1), axis=1)
        for kernel in kernels:
            torch.mul(cost, -1.0, out=kernel).exp_()
            vector @ kernel, vector @ kernel

    return lambda: undisturbed(passes, size, unit.device)


def _setting(plan: Plan) -> str:
    if plan.before is None:
        return ""
    return (
        f"`before` is an allocation by an earlier tree, {before.described(plan.before)}, in a "
        "process of its own; the way there and back is part of its time."
    )


def _in_case(case: str) -> Callable[[Cell], bool]:
    return lambda cell: cell.get("case") == case


def _is_cell(size: int, dim: int, cell: Cell) -> bool:
    return "case" not in cell and (cell["m"], cell["d"]) == (size, dim)


BENCHMARK = Benchmark(
    title="Performance",
    threads=None,
    plan=Plan(),
    quick=Plan(
        sizes=(250, 500),
        dims=(32,),
        peers_up_to=0,
        tiled_from=500,
        busy_at=(500,),
        trained_at=(500,),
        least_seconds=0.05,
    ),
    measure=measure,
    columns={
        "m": column("m"),
        "d": column("d"),
        "case": column("case"),
        "sphere ms": column("seconds.sphere", by=milliseconds),
        **{name: column(f"ratios.{name}", by=TWO_DIGITS) for name in RATIOS},
        "sphere MiB": column("peak_mib.sphere", by="{:.0f}".format),
        "naive MiB": column("peak_mib.naive", by="{:.0f}".format),
    },
    targets=(
        at_least(
            4.0,
            "times faster than naive, m >= 2000",
            "ratios.naive / sphere",
            where=lambda cell: "case" not in cell and cell["m"] >= 2000,
        ),
        at_most(
            2.0,
            "times a bare GEMM, m = 4000, d = 512",
            "ratios.sphere / gemm",
            where=partial(_is_cell, 4000, 512),
        ),
        at_most(
            256.0,
            "MiB beyond the features, m = 32000",
            "peak_mib.sphere",
            where=lambda cell: cell["m"] == 32000,
        ),
        at_most(3.0, "times dense for tiled, where dense fits", "ratios.tiled / dense"),
        at_least(
            3.0,
            "times faster than naive beside a busy process",
            "ratios.naive / sphere",
            where=_in_case(BUSY),
        ),
        at_most(
            3.0,
            "times a bare GEMM beside a busy process",
            "ratios.sphere / gemm",
            where=_in_case(BUSY),
        ),
        at_most(
            1.3,
            "times normal for trained features, m = 4000",
            "ratios.trained / normal",
            where=lambda cell: cell["m"] == 4000,
        ),
        *(
            at_most(
                most,
                f"times a bare GEMM, m = 500, d = {dim}",
                "ratios.sphere / gemm",
                where=partial(_is_cell, 500, dim),
            )
            for dim, most in ((100, 5.25), (512, 2.9))
        ),
        *(
            at_least(
                2.0,
                f"times faster than the earlier tree, m = 500, d = {dim}",
                "ratios.before / sphere",
                where=partial(_is_cell, 500, dim),
            )
            for dim in (100, 512)
        ),
    ),
    setting=_setting,
    legend=f"""
        m memories with d features each, standard normal, float32. `naive` is Algorithm 1 of the
        paper written down with dense matrices and fully sorted rows, `topk` the same with
        `torch.topk` in place of the sort; both are left out where their matrices take gigabytes
        (m > {Plan.naive_up_to}). `gemm` is `H @ H.T` alone; `gemm into` writes the products
        into memory that is already there. `passes` are those over C of a plain allocation, bare
        and in one thread: products, distances, rows parted at their furthest neighbour, two
        kernels and two products with each of them.

        Where half of the distances take more than {DEFAULT_BUDGET >> 20} MiB, from
        m = {_TILED_FROM} on, the library chooses tiles by itself; from m = {Plan.tiled_from} on
        three ways are compared: `tiled` keeps the distances that fit into it, `unkept` none (every
        tile is made anew in every pass), `dense` all. MiB are peaks beyond the inputs, each
        measured in a process of its own.

        Cases: `busy` runs beside another process that keeps one core busy, all contestants
        alike. `trained` takes the features of an MLP trained on digits (moved by up
        to a pixel), against normal ones of the same size. `calibrated` is
        `Sphere.calibrated()` with labels in place of `Sphere.vision()`.
    """,
    notes="""
        The floor of an exact allocation is the products behind the distances, and C is
        symmetric: a tile of its upper triangle serves its rows and, transposed, its columns.
        That halves the products and, for each kernel, the exponentials, which is how a whole
        allocation can cost little more than one full GEMM. A tile is small enough to stay in
        the cache between the exponential and the product with a vector, so after the distances
        a pass costs one read of memory. The plan is never formed: q* takes two kernel products.

        What the naive version spends most of its time on is sorting whole rows for two
        neighbour radii, and `topk` shows how much of the gain a partial selection alone brings.
        Here numpy parts rows of up to 2,048 memories; of longer ones groups of columns are
        compared by their minima, and only the few that can hold near neighbours are looked
        into. Beyond the memory budget, tiles that were not kept are made
        again in each pass, so time then follows the products: the larger d, the more a tile is
        worth keeping.

        Torch splits each operation over its threads, which spin until the last is done; with
        another process on a core that is most of the time. Here each thread takes whole pieces
        of four tiles, alone, and whoever is held up delays nobody; what is no tile, and up to
        1,024 memories everything but the products of very long features, runs in one thread.
        Pieces and their order do not depend on the threads, and so neither does any bit of the
        result.

        Up to 1,024 memories C is one piece, and its two kernels are kept; of the products of
        long features little more than half is computed, and the rest mirrored. An allocation of
        500 is then its `passes` and a hundred operations on vectors of 500 numbers, with the way
        to the thread and back. A GEMM on all threads is a hard unit there, for it is the only
        one of the passes that gains by a second thread.

        Trained features lie in clusters, where |a|² + |b|² - 2ab loses digits. Points are then
        seen from the nearest of up to 64 anchors, which keeps the products in float32; float64
        is left to scales that are tiny even within clusters, to square roots, and to up to 512
        memories.
    """,
)
