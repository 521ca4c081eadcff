"""From features to the geometry that suits their number."""

from torch import Tensor

from sphere_replay.geometry.dense import DenseGeometry
from sphere_replay.geometry.distances import Distance, SquaredEuclidean
from sphere_replay.geometry.protocol import Geometry
from sphere_replay.geometry.tiled import DEFAULT_BUDGET, TiledGeometry
from sphere_replay.geometry.tiles import TileGeometry


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
