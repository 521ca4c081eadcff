"""How fast an allocation is: against the paper's own formulas, a bare GEMM, and its own tiles.

Features are standard normal, so kernels are wide and distances come from float32 products (see
`geometry.sources`). Every figure is a ratio of medians taken in turns in one run, in float32 and on
all threads.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks import Progress, Report, Target
from benchmarks.naive import available_peers, naive_weights, topk_weights
from benchmarks.timing import (
    all_threads,
    describe_machine,
    interleave,
    milliseconds,
    peak_memory,
)
from sphere_replay.allocation import Sphere, allocate
from sphere_replay.geometry import DenseGeometry, SquaredEuclidean, TiledGeometry
from sphere_replay.geometry.tiled import DEFAULT_BUDGET
from sphere_replay.geometry.tiles import TileGeometry

SUMMARY = "time an allocation against the naive transcription and a bare GEMM"
SIZES = (500, 1000, 2000, 4000, 8000, 16000, 32000)
DIMS = (100, 512, 1024)

Call = Callable[[], object]


@dataclass(frozen=True)
class Plan:
    """What is measured, and from which size on it would take too long or too much memory."""

    sizes: tuple[int, ...] = SIZES
    dims: tuple[int, ...] = DIMS
    main_dim: int = 512
    """Memory is measured at this d only, and so is everything from `main_dim_from` on."""
    main_dim_from: int = 32000
    naive_up_to: int = 8000
    gemm_into_up_to: int = 16000
    dense_up_to: int = 16000
    tiled_from: int = 16000
    peers_up_to: int = 1000
    warm_up_below: int = 8000
    """Calls of seconds need no warm-up."""
    least_seconds: float = 1.0

    def cells(self) -> Iterator[tuple[int, int]]:
        """Pairs (m, d), small ones first."""
        for size in self.sizes:
            for dim in self.dims:
                if size < self.main_dim_from or dim == self._main_dim:
                    yield size, dim

    def measures_memory(self, dim: int) -> bool:
        """Whether peaks are measured at this d."""
        return dim == self._main_dim

    @property
    def _main_dim(self) -> int:
        return self.main_dim if self.main_dim in self.dims else self.dims[-1]


QUICK = Plan(sizes=(250, 500), dims=(32,), peers_up_to=0, tiled_from=500, least_seconds=0.05)


@dataclass(frozen=True)
class Cell:
    """Figures of one m and d."""

    size: int
    dim: int
    rounds: int
    seconds: dict[str, float]
    peak_mib: dict[str, float | None] = field(default_factory=dict)

    def ratio(self, name: str) -> float | None:
        """One of RATIOS; None if a side of it was not measured."""
        above, below = (self.seconds.get(side) for side in RATIOS[name])
        return None if above is None or below is None else above / below

    def to_json(self) -> dict[str, object]:
        """Medians, the ratios that follow from them, and peaks."""
        return {
            "m": self.size,
            "d": self.dim,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "ratios": {name: self.ratio(name) for name in RATIOS if self.ratio(name) is not None},
            "peak_mib": self.peak_mib,
        }


RATIOS = {
    "naive / sphere": ("naive", "sphere"),
    "topk / sphere": ("topk", "sphere"),
    "sphere / gemm": ("sphere", "gemm"),
    "sphere / gemm into": ("sphere", "gemm_into"),
    "tiled / dense": ("tiled", "dense"),
    "unkept / dense": ("unkept", "dense"),
    "pot / sphere": ("pot", "sphere"),
    "keops / sphere": ("keops", "sphere"),
}

LEGEND = (
    "m memories with d features each, standard normal, float32. `naive` is Algorithm 1 of the "
    "paper written down with dense matrices and fully sorted rows, `topk` the same with "
    "`torch.topk` in place of the sort; both are left out where their matrices take gigabytes "
    f"(m > {Plan.naive_up_to}). `gemm` is `H @ H.T` alone; `gemm into` "
    "writes the products into memory that is already there.",
    f"From m = {Plan.tiled_from} on the library chooses tiles by itself: `tiled` keeps the "
    f"distances that fit into {DEFAULT_BUDGET >> 20} MiB, `unkept` none (every tile is made anew "
    "in every pass), `dense` all. MiB are peaks beyond the inputs, each measured in a process of "
    "its own.",
)

NOTES = (
    "The floor of an exact allocation is the products behind the distances, and C is symmetric: a "
    "tile of its upper triangle serves its rows and, transposed, its columns. That halves the "
    "products and, for each kernel, the exponentials, which is how a whole allocation can cost "
    "little more than one full GEMM. A tile is small enough to stay in the cache between the "
    "exponential and the product with a vector, so after the distances a pass costs one read of "
    "memory. The plan is never formed: q* takes two kernel products.",
    "What the naive version spends most of its time on is sorting whole rows for two neighbour "
    "radii, and `topk` shows how much of the gain a partial selection alone brings. Here groups of "
    "columns are compared by their minima, and only the few that can hold near neighbours are "
    "looked into. Beyond the memory budget, tiles that were not kept are made again in each pass, "
    "so time then follows the products: the larger d, the more a tile is worth keeping.",
    "Two things this table does not show. Features in tight clusters (kernel scales below about a "
    "tenth of their squared norm) take float64 products, several times slower, and are then hardly "
    "faster than the naive version, which stays in float32. And many short parallel steps suffer "
    "more than a few long ones when other work keeps the cores busy.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which sizes and dimensions to measure."""
    parser.add_argument("--sizes", type=_count, nargs="+", metavar="M", help="memories")
    parser.add_argument("--dims", type=_count, nargs="+", metavar="D", help="features per memory")


def measure(arguments: argparse.Namespace, progress: Progress) -> Report:
    """Run the cells that were asked for."""
    base = QUICK if arguments.quick else Plan()
    plan = Plan(
        **{
            **vars(base),
            "sizes": _ordered(arguments.sizes) or base.sizes,
            "dims": _ordered(arguments.dims) or base.dims,
        }
    )
    command = ["sphere", "bench", "allocate"]
    command += ["--quick"] if arguments.quick else []
    for option, values in (("--sizes", arguments.sizes), ("--dims", arguments.dims)):
        command += [option, *map(str, values)] if values else []
    with all_threads():
        machine = describe_machine()
        cells = measure_cells(plan, progress)
    columns, rows = _table(cells)
    return Report(
        benchmark="allocate",
        title="Performance",
        command=tuple(command),
        machine=machine,
        cells=tuple(cell.to_json() for cell in cells),
        columns=columns,
        rows=rows,
        legend=LEGEND,
        notes=NOTES,
        targets=targets(cells),
    )


def measure_cells(plan: Plan, progress: Progress) -> list[Cell]:
    """Times and peaks of every cell of a plan."""
    cells = []
    pairs = list(plan.cells())
    for done, (size, dim) in enumerate(pairs):
        progress(done, len(pairs), f"m = {size}, d = {dim}")
        timing = interleave(
            _contestants(plan, size, dim),
            warm_up=size < plan.warm_up_below,
            least_seconds=plan.least_seconds,
        )
        seconds = timing.seconds
        if "tiled" not in seconds and size >= plan.tiled_from:
            seconds["tiled"] = seconds["sphere"]  # the library's own choice at this size
        peaks: dict[str, float | None] = {}
        if plan.measures_memory(dim):
            peaks = {
                name: peak_memory(
                    f"{__name__}:workload",
                    {"name": name, "size": size, "dim": dim},
                    {"name": name, "size": 256, "dim": dim},
                )
                for name in ("sphere", "naive")
                if name in seconds
            }
        cells.append(Cell(size, dim, timing.rounds, seconds, peaks))
    progress(len(pairs), len(pairs), "done")
    return cells


def workload(name: str, size: int, dim: int) -> Call:
    """One contestant on inputs of its own, for `peak_memory`."""
    increments, features = inputs(size, dim)
    return _allocators(increments, features)[name]


def inputs(size: int, dim: int) -> tuple[Tensor, Tensor]:
    """δ `[m]`, noise with a tenth of positive spikes, and standard normal h `[m, d]`."""
    generator = torch.Generator().manual_seed(size * 4096 + dim)
    features = torch.randn(size, dim, generator=generator)
    increments = 0.1 * torch.randn(size, generator=generator)
    spikes = torch.randperm(size, generator=generator)[: max(1, size // 10)]
    increments[spikes] += 1 + torch.rand(len(spikes), generator=generator)
    return increments, features


def targets(cells: list[Cell]) -> tuple[Target, ...]:
    """What the library promises, against the worst cell of the run."""
    naive = [cell.ratio("naive / sphere") for cell in cells if cell.size >= 2000]
    gemm = [cell.ratio("sphere / gemm") for cell in cells if (cell.size, cell.dim) == (4000, 512)]
    peaks = [cell.peak_mib.get("sphere") for cell in cells if cell.size == 32000]
    tiled = [cell.ratio("tiled / dense") for cell in cells]
    return (
        Target("times faster than naive, m >= 2000", "at least", 4.0, _worst(min, naive)),
        Target("times a bare GEMM, m = 4000, d = 512", "at most", 2.0, _worst(max, gemm)),
        Target("MiB beyond the features, m = 32000", "at most", 256.0, _worst(max, peaks)),
        Target("times dense for tiled, where dense fits", "at most", 3.0, _worst(max, tiled)),
    )


def _worst(pick: Callable[[list[float]], float], values: list[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return pick(measured) if measured else None


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
    if size <= plan.peers_up_to:
        for name, peer in available_peers().items():
            calls[name] = partial(peer, increments, features)
    return calls


def _table(cells: list[Cell]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows as text; a column without a figure is left out."""
    table: dict[str, list[str]] = {
        "m": [str(cell.size) for cell in cells],
        "d": [str(cell.dim) for cell in cells],
        "sphere ms": [milliseconds(cell.seconds["sphere"]) for cell in cells],
    }
    for name in RATIOS:
        table[name] = [_text(cell.ratio(name), ".2f") for cell in cells]
    for name in ("sphere", "naive"):
        table[f"{name} MiB"] = [_text(cell.peak_mib.get(name), ".0f") for cell in cells]
    filled = {name: column for name, column in table.items() if any(column)}
    return tuple(filled), tuple(zip(*filled.values(), strict=True))


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _ordered(values: list[int] | None) -> tuple[int, ...]:
    return tuple(sorted(set(values or ())))


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 2")
    return value
