"""The distances of the paper, as small values. A new one is a class here: a source and a unit."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sphere_replay.geometry.protocol import Geometry
from sphere_replay.geometry.sources import CostSource, MatrixSource, point_source
from sphere_replay.numeric import median
from sphere_replay.validation import check_cost_matrix, check_features


@runtime_checkable
class Distance(Protocol):
    """Turns features into pairwise costs C = block / unit."""

    def source(self, features: Tensor) -> CostSource:
        """Blocks of distances between the rows of `features`, after checking them."""
        ...

    def unit(self, geometry: Geometry) -> float:
        """What one unit of cost is, given the geometry of the raw distances."""
        ...


@dataclass(frozen=True)
class SquaredEuclidean:
    """C = |h_i - h_j|² between l2-normalised features: the paper's choice for vision."""

    def source(self, features: Tensor) -> CostSource:
        """Squared distances between unit rows."""
        return point_source(check_features(features))

    def unit(self, geometry: Geometry) -> float:
        """Distances as they are."""
        return 1.0


@dataclass(frozen=True)
class Euclidean:
    """C = |h_i - h_j| / ν between l2-normalised features, ν their median: instruction tuning."""

    def source(self, features: Tensor) -> CostSource:
        """Distances between unit rows."""
        return point_source(check_features(features), root=True)

    def unit(self, geometry: Geometry) -> float:
        """ν, the pool's median distance; 1 if all its points coincide."""
        return geometry.median_distance() or 1.0


@dataclass(frozen=True)
class Cosine:
    """C = (1 - cos(h_i, h_j)) / d0: code RL, on prompt embeddings.

    Computed as |h_i - h_j|² / 2d0, which is the same for unit rows and keeps a zero row at distance
    zero from itself.

    Attributes:
        d0: The unit. None takes the features' own: the median distance to their 8th neighbour.
        center: Subtract the features' mean and normalise again. Leave it off for embeddings that
            were centred once over a larger set (`center_embeddings`).
    """

    d0: float | None = None
    center: bool = False
    neighbor: int = 8

    def __post_init__(self) -> None:
        if self.d0 is not None and not 0 < 2 * self.d0 < float("inf"):
            raise ValueError(
                f"d0 must be positive and finite, got {self.d0}; "
                "pass None to take the features' own"
            )

    def source(self, features: Tensor) -> CostSource:
        """Squared distances between unit rows: twice the cosine distance."""
        return point_source(check_features(features), center=self.center)

    def unit(self, geometry: Geometry) -> float:
        """2 d0."""
        if self.d0 is not None:
            return 2 * self.d0
        return median(geometry.neighbor_radius([self.neighbor])) or 2.0


@dataclass(frozen=True)
class Precomputed:
    """The caller hands over the cost matrix `[m, m]` itself in place of features."""

    def source(self, features: Tensor) -> CostSource:
        """The matrix, after checking that it is a cost: finite, symmetric, zero diagonal."""
        matrix = check_cost_matrix(features)
        return MatrixSource(matrix.to(torch.promote_types(matrix.dtype, torch.float32)))

    def unit(self, geometry: Geometry) -> float:
        """Costs as they are."""
        return 1.0
