"""Distances between memories, and the only things an allocation asks of them.

An allocation never looks at a distance: it applies `exp(-C/eps)` to vectors and reads neighbour
radii. Everything that can do so is a `Geometry`; the algorithm above it is written once.
"""

from sphere_replay.geometry.approximate import ApproximateGeometry
from sphere_replay.geometry.build import (
    EXACT_UP_TO,
    DenseGeometry,
    Kind,
    TiledGeometry,
    build_geometry,
    neighbor_distance_scale,
)
from sphere_replay.geometry.distances import (
    Cosine,
    Distance,
    Euclidean,
    Precomputed,
    SquaredEuclidean,
)
from sphere_replay.geometry.embeddings import center_embeddings
from sphere_replay.geometry.grouping import Grouping
from sphere_replay.geometry.large import CellGeometry, LowRankGeometry
from sphere_replay.geometry.neighbors import Kept, Neighbors, kept_of
from sphere_replay.geometry.permuted import ExactRows, PermutedGeometry, exact_rows, sums_by_class
from sphere_replay.geometry.protocol import Approximate, Geometry, Neighborhood
from sphere_replay.geometry.ring import LostRankError
from sphere_replay.geometry.sharded import ShardedGeometry
from sphere_replay.geometry.sparse import SparseGeometry
from sphere_replay.geometry.whole import WholeGeometry

__all__ = [
    "EXACT_UP_TO",
    "Approximate",
    "ApproximateGeometry",
    "CellGeometry",
    "Cosine",
    "DenseGeometry",
    "Distance",
    "Euclidean",
    "ExactRows",
    "Geometry",
    "Grouping",
    "Kept",
    "Kind",
    "LostRankError",
    "LowRankGeometry",
    "Neighborhood",
    "Neighbors",
    "PermutedGeometry",
    "Precomputed",
    "ShardedGeometry",
    "SparseGeometry",
    "SquaredEuclidean",
    "TiledGeometry",
    "WholeGeometry",
    "build_geometry",
    "center_embeddings",
    "exact_rows",
    "kept_of",
    "neighbor_distance_scale",
    "sums_by_class",
]
