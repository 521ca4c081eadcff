"""What geometries of many points have in common, whatever their kernel products are made of.

Costs of chosen memories are exact, and so are the radii, scales and medians that a sample settles;
values that dwarf all others are carried by exact columns. How the rest of a kernel is applied is
up to each geometry.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from sphere_replay.geometry.calibration import sampled, scales_of_neighbors
from sphere_replay.geometry.cells import squared_between, squared_lengths
from sphere_replay.geometry.dominant import dominant
from sphere_replay.geometry.logarithms import log_carried, log_product
from sphere_replay.geometry.neighbors import CLOSE, Kept
from sphere_replay.geometry.order import smallest
from sphere_replay.geometry.protocol import Neighborhood
from sphere_replay.geometry.sources import recompute_close
from sphere_replay.geometry.threads import in_order, slices
from sphere_replay.numeric import accumulation_dtype, median, spread

NOTHING = 1e-30
"""Products below this stand for zero, where a memory's own part is left out."""
_ALL_SEARCHED, _SEARCHED = 32_768, 1024
"""Memories up to which all give their neighbour radii, and how many do of more than that."""
_SEARCH_ROWS, _SEARCH_COLUMNS = 512, 1 << 14
_MEDIAN_ROWS = 4096
_PANEL_BYTES = 1 << 26


class ApproximateGeometry(ABC):
    """Points in places that suit the geometry; see `Geometry` and `Approximate`.

    Args:
        points: Unit rows in float32 `[m, d]`, in the order of their places.
        members: Which memory each place holds, `[m]`.
        places: Where each memory is, `[m]`.
        root: Whether costs are distances instead of their squares.
    """

    def __init__(self, points: Tensor, members: Tensor, places: Tensor, *, root: bool) -> None:
        self._points, self._members, self._places = points, members, places
        self._root = root
        self.size = len(points)
        """Number of memories m."""
        self.dtype = points.dtype
        self.device = points.device
        self.unit = 1.0
        """C = distance / unit; set once by whoever chose the distance."""
        self.why = ""
        """Why this geometry was chosen."""

    @property
    @abstractmethod
    def kept(self) -> Kept:
        """What saves the next geometry of mostly the same features a search."""

    @abstractmethod
    def _product(self, eps: float, stacked: Tensor, *, others_only: bool) -> Tensor:
        """exp(-C/eps) @ vectors `[m, p]`, both in the order of places."""

    @abstractmethod
    def neighborhood(self, eps: float) -> Neighborhood:
        """Mass, effective size and radius of every neighbourhood of exp(-C/eps)."""

    @abstractmethod
    def explained(self) -> str:
        """How the kernels were applied so far, and why."""

    @abstractmethod
    def sums_by_class(
        self, eps: float, belongs: Tensor, count: int
    ) -> Iterator[tuple[Tensor, Tensor]] | None:
        """Of all memories, some at a time: `[n]`, and exp(-C/eps) over the others of each class.

        One pass serves all classes `[n, count]`, where products would take a vector for each. None
        if such sums would leave too much out.
        """

    def apply_kernel(self, eps: float, vectors: Tensor, *, others_only: bool = False) -> Tensor:
        """exp(-C/eps) @ vectors, for vectors `[m]` or `[m, p]`, as near as this geometry gets."""
        stacked = vectors.reshape(self.size, -1).to(self.dtype)[self._members]
        apart = dominant(stacked)
        if apart is not None:
            stacked = apart.others
        result = self._product(eps, stacked, others_only=others_only)
        if apart is not None:
            result += apart.carried(self._rows, eps * self.unit, others_only=others_only)
        if others_only:
            result.masked_fill_(result.abs() < NOTHING, 0.0)
        return result[self._places].reshape(vectors.shape)

    def apply_log_kernel(self, eps: float, log_vector: Tensor) -> Tensor:
        """log(exp(-C/eps) @ exp(log_vector)) for `[m]`: see `logarithms`."""
        log_vector = log_vector.to(accumulation_dtype(self.device))

        def multiply(vectors: Tensor) -> Tensor:
            return self.apply_kernel(eps, vectors, others_only=True)

        def carry(memories: Tensor) -> Tensor:
            places, given = self._places[memories], log_vector[memories]
            found = log_carried(self._rows, places, given, eps * self.unit, self.size)
            return found[self._places]

        return log_product(log_vector, multiply, carry)

    def log_transport(self, eps: float, log_vector: Tensor) -> tuple[Tensor, Tensor]:
        """Target a ⊙ E(1/Z)/m and log Z for log a `[m]` of any size; E = exp(-C/eps), Z = E a."""
        log_reached = self.apply_log_kernel(eps, log_vector)
        log_target = log_vector + self.apply_log_kernel(eps, -log_reached)
        return torch.softmax(log_target, dim=0), log_reached

    def neighbor_radius(self, neighbors: Sequence[int]) -> Tensor:
        """`[len(neighbors), n]`: exact, of all memories while these are few, then of a sample."""
        columns = [min(k, self.size - 1) for k in neighbors]
        everybody, most = slices(self.size, _SEARCH_COLUMNS), max(columns) + 1
        sample = self._spread(self.size if self.size <= _ALL_SEARCHED else _SEARCHED)
        found = []
        for places in torch.split(sample, _SEARCH_ROWS):

            def nearest(part: slice, places: Tensor = places) -> Tensor:
                costs = self._rows(places, part)
                return smallest(costs, min(most, costs.shape[1]))

            parts = list(in_order(nearest, everybody, self.device))
            found.append(smallest(torch.cat(parts, dim=1), most)[:, columns])
        return torch.cat(found).T.to(accumulation_dtype(self.device)) / self.unit

    def kernel_scales(self, neighbors: Sequence[float]) -> list[float]:
        """For each wanted number the eps at which it is the median N_eff of a few memories."""
        costs = torch.cat(list(self._panels(self._spread(sampled(self.size)))))
        return [scale.eps / self.unit for scale in scales_of_neighbors(costs, neighbors)]

    def median_distance(self) -> float:
        """Median of C over the pairs of up to 4096 memories; see `Geometry`."""
        points = self._points[self._spread(_MEDIAN_ROWS)]
        distances = torch.nn.functional.pdist(points.to(accumulation_dtype(self.device)))
        distinct = distances[distances > 0]
        if len(distinct) == 0:
            return 0.0
        middle = median(distinct if 2 * len(distinct) < len(distances) else distances)
        return (middle if self._root else middle**2) / self.unit

    @property
    def order(self) -> Tensor:
        """All memories, place after place, `[m]`."""
        return self._members

    def costs(self, memories: Tensor, part: slice) -> Tensor:
        """C[memories, order[part]] `[n, k]`, exactly."""
        return self._rows(self._places[memories], part).div_(self.unit)

    @cached_property
    def _lengths(self) -> Tensor:
        return squared_lengths(self._points)

    def _rows(self, places: Tensor, part: slice = slice(None)) -> Tensor:
        """Exact raw costs of some places to all, or to a part of them: `[n, k]`."""
        left, right = self._points[places], self._points[part]
        squared = squared_between(left, right, self._lengths[part])
        recompute_close(squared, left, right, CLOSE)
        return squared.sqrt_() if self._root else squared

    def _panels(self, places: Tensor) -> Iterator[Tensor]:
        height = max(1, _PANEL_BYTES // (self.size * self.dtype.itemsize))
        return (self._rows(part) for part in torch.split(places, height))

    def _spread(self, count: int) -> Tensor:
        """Places of about `count` memories."""
        return self._places[spread(self.size, count).to(self.device)]
