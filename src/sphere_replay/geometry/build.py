"""From features to the geometry that suits their number, and to their unit."""

from torch import Tensor

from sphere_replay.geometry.approximate import ApproximateGeometry
from sphere_replay.geometry.calibration import sampled
from sphere_replay.geometry.distances import Cosine, Distance, SquaredEuclidean
from sphere_replay.geometry.large import CellGeometry, LowRankGeometry
from sphere_replay.geometry.neighbors import Kept
from sphere_replay.geometry.protocol import Geometry
from sphere_replay.geometry.sources import CostSource, PointSource
from sphere_replay.geometry.sparse import SparseGeometry
from sphere_replay.geometry.threads import runs_alone, undisturbed
from sphere_replay.geometry.tiles import TileGeometry
from sphere_replay.geometry.whole import WholeGeometry
from sphere_replay.numeric import median
from sphere_replay.validation import Choice, check_features

DEFAULT_BUDGET = 256 << 20
"""Bytes a tiled geometry may use beyond the features it was given."""

EXACT_UP_TO = 32_768
"""Memories that are exact unless asked otherwise. Time grows with their square beyond, too."""


class Kind(Choice):
    """How kernels are applied."""

    AUTO = "auto"
    """Exact up to `EXACT_UP_TO` memories, `cells` beyond."""
    EXACT = "exact"
    """Every pair: in one piece if these are few, dense while half of the distances fit into the
    budget, tiled beyond."""
    CELLS = "cells"
    """Near pairs exactly, others by moments, as far as the kernel of each scale needs either."""
    SPARSE = "sparse"
    """The nearest others of each memory alone."""
    LOW_RANK = "low-rank"
    """Moments of cells, and the pairs of each cell."""

    @classmethod
    def _called(cls) -> str:
        return "geometry"


_APPROXIMATE = {
    Kind.CELLS: CellGeometry,
    Kind.SPARSE: SparseGeometry,
    Kind.LOW_RANK: LowRankGeometry,
}


class DenseGeometry(TileGeometry):
    """The upper triangle of C, computed once and kept: the fastest while m²/2 numbers fit."""

    def __init__(self, source: CostSource) -> None:
        super().__init__(source, keep_bytes=None)


class TiledGeometry(TileGeometry):
    """C tile by tile, forgotten at once: any number of memories within `budget` bytes.

    What is left of the budget after the working set keeps tiles. The working set is the source's
    own copy of the points, a panel of rows for the neighbour search (a sixteenth of the budget) and
    two dozen tiles.
    """

    def __init__(self, source: CostSource, budget: int = DEFAULT_BUDGET) -> None:
        super().__init__(source, keep_bytes=0, panel_bytes=budget // 16)
        side, number = min(self._tile, self.size), source.dtype.itemsize
        panel = max(self._panel_bytes, sampled(self.size) * self.size * number)
        working = source.held_bytes + 2 * panel + 24 * side**2 * number
        self._keep_bytes = max(0, budget - working)


def build_geometry(
    features: Tensor,
    distance: Distance | None = None,
    *,
    budget: int = DEFAULT_BUDGET,
    kind: Kind | str = Kind.AUTO,
    before: Kept | None = None,
) -> Geometry:
    """The geometry of `features` `[m, d]` under `distance`; its `why` says which, and for what.

    Exact ones are dense while half of the m x m distances fit into `budget` bytes (whole, if these
    are few), tiled within it beyond that. Approximate ones hold a copy of the points in float32;
    beside it cells take up to 400 MiB for their pairs and about 200 MiB to work in. Lists of
    nearest others hold up to 16 bytes for each that a memory looks for; while they are made, about
    twice as many, and what faiss holds. Memories whose features are those of `before` stay in their
    cells, or keep their others.
    """
    distance, kind, budget = distance or SquaredEuclidean(), Kind(kind), int(budget)
    if budget < 0:
        raise ValueError(f"budget counts bytes for distances and cannot be negative, got {budget}")
    source = distance.source(features)
    size = f"{source.size} memories"
    points = isinstance(source, PointSource)
    if kind is Kind.AUTO:
        small = source.size <= EXACT_UP_TO
        kind = Kind.EXACT if small or not points else Kind.CELLS
        size += f", up to {EXACT_UP_TO} are exact" if small or points else " without features"
    else:
        size += f", {kind} was asked for"
    geometry: TileGeometry | ApproximateGeometry
    if kind is Kind.EXACT:
        held = source.size * (source.size + 1) // 2 * source.dtype.itemsize
        dense = held <= budget
        if not dense:
            geometry, name = TiledGeometry(source, budget), "tiled"
        elif runs_alone(source.size):
            geometry, name = WholeGeometry(source), "whole"
        else:
            geometry, name = DenseGeometry(source), "dense"
        size += f"; {held >> 20} of {budget >> 20} MiB for their distances"
    elif isinstance(source, PointSource):
        source.sharpen_all()  # gives back the copy that fast distances would take
        geometry, name = _APPROXIMATE[kind](source, before=before), str(kind)
    else:
        raise ValueError(f"{kind} geometries look at points, and {distance} has none")
    geometry.why = f"{name}: {size}"
    geometry.unit = distance.unit(geometry)
    return geometry


def neighbor_distance_scale(features: Tensor, neighbor: int = 8) -> float:
    """d0: the median cosine distance 1 - cos to the k-th nearest neighbour, 1 if that is zero."""
    features = check_features(features)

    def found() -> float:
        return median(build_geometry(features, Cosine(d0=1.0)).neighbor_radius([neighbor]))

    return undisturbed(found, len(features), features.device, dim=features.shape[1]) or 1.0
