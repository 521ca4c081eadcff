"""From features to the geometry that suits their number, and to their natural unit."""

from torch import Tensor

from sphere_replay.geometry.dense import DenseGeometry
from sphere_replay.geometry.distances import Cosine, Distance, SquaredEuclidean
from sphere_replay.geometry.protocol import Geometry
from sphere_replay.geometry.tiled import DEFAULT_BUDGET, TiledGeometry
from sphere_replay.geometry.tiles import TileGeometry
from sphere_replay.numeric import median


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
