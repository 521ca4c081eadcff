"""From features to the geometry that suits their number, dense or tiled, and to their unit."""

from torch import Tensor

from sphere_replay.geometry.distances import Cosine, Distance, SquaredEuclidean
from sphere_replay.geometry.protocol import Geometry
from sphere_replay.geometry.sources import CostSource
from sphere_replay.geometry.tiles import TileGeometry
from sphere_replay.numeric import median

DEFAULT_BUDGET = 256 << 20
"""Bytes a tiled geometry may use beyond the features it was given."""


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
        side = min(self._tile, self.size)
        working = source.held_bytes + 2 * self._panel_bytes + 24 * side**2 * source.dtype.itemsize
        self._keep_bytes = max(0, budget - working)


def build_geometry(
    features: Tensor, distance: Distance | None = None, *, budget: int = DEFAULT_BUDGET
) -> Geometry:
    """The exact geometry of `features` `[m, d]` under `distance`.

    Dense while half of the m x m distances fit into `budget` bytes, tiled within it beyond that.
    """
    distance = distance or SquaredEuclidean()
    source = distance.source(features)
    held = source.size * (source.size + 1) // 2 * source.dtype.itemsize
    geometry: TileGeometry
    geometry = DenseGeometry(source) if held <= budget else TiledGeometry(source, budget)
    geometry.unit = distance.unit(geometry)
    return geometry


def neighbor_distance_scale(features: Tensor, neighbor: int = 8) -> float:
    """d0: the median cosine distance 1 - cos to the k-th nearest neighbour, 1 if that is zero."""
    distances = build_geometry(features, Cosine(d0=1.0)).neighbor_radius([neighbor])
    return median(distances) or 1.0
