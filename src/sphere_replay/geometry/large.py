"""Geometries for more memories than have pairs to spare: near pairs exactly, the rest by landmarks.

Memories lie in cells (see `cells`). The kernel between i in cell a and j in cell b is

    near cells:  K_ij = exp(-C_ij / eps)
    all others:  K_ij = g_i g_j exp(-(C(i, b) + C(a, j) - C(a, b)) / eps)

with the cells' centers for landmarks. For squared distances the second line misses nothing but the
product of two deviations from centers, which is as often positive as negative; g_i, a function of
how far i lies from its center, makes up for what it does on average (see `pilot`). Both lines are
symmetric and positive, and K_ii = 1 is among the first: row sums are positive, and what a
transposed average hands out is what it was given.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sphere_replay.geometry.calibration import scale_of_neighbors
from sphere_replay.geometry.cells import Cells, costs_between
from sphere_replay.geometry.order import smallest
from sphere_replay.geometry.pilot import (
    LARGEST_EXPONENT,
    LEAST_EXPONENT,
    Plan,
    Rows,
    planned,
)
from sphere_replay.geometry.protocol import Neighborhood
from sphere_replay.geometry.sources import PointSource
from sphere_replay.numeric import accumulation_dtype, median

PAIRS = 2048
"""Memories near each one, about, whose kernel is exact; at least those of its own cell."""

_NOTHING = 1e-30
"""Products below this stand for zero, where a memory's own part is left out."""
_ROUNDING = 1e-3
"""Times eps: larger rounding errors of a distance are not tolerated."""
_CLOSE, _CLOSE_AT_ONCE = 1e-3, 1 << 15
"""Squared distances below this are computed from differences, so many at a time."""
_WIDTH = 2048
"""Columns of a tile."""

_SEARCHED = 1 << 30
"""Distances looked at for neighbour radii: those of all up to 32,768 memories, then of fewer."""
_MEDIAN_ROWS = 4096
_SCALE_ROWS, _FEW_ROWS = 128, 32
_PANEL_BYTES = 1 << 26

_BAND = 30.0
"""Logarithms that one product in plain numbers can hold."""
_STEP = 1e-3
"""Relative step of the derivative behind mean distances."""


class CellGeometry:
    """Kernel products in time proportional to m; which way they take depends on the scale.

    Args:
        source: Points whose pairwise distances are the costs.
        pairs: How many memories near each one are exact; `PAIRS` unless given.
        cells: Cells to use; found anew unless given.
        seed: Of the sample that cells are found by, and of nothing else.
    """

    def __init__(
        self,
        source: PointSource,
        pairs: int | None = None,
        *,
        cells: Cells | None = None,
        seed: int = 0,
    ) -> None:
        self._root = source.root
        self._pairs = PAIRS if pairs is None else pairs
        self.cells = cells or Cells(source.points, torch.Generator().manual_seed(seed))
        self.size = len(self.cells.points)
        """Number of memories m."""
        self.dtype = self.cells.points.dtype
        self.device = self.cells.points.device
        self.unit = 1.0
        """C = distance / unit; set once by whoever chose the distance."""
        self.why = ""
        """Why this geometry was chosen."""
        self._plans: dict[float, Plan] = {}

    def renewed(self, source: PointSource) -> "CellGeometry":
        """The geometry of newer features: memories that did not move stay in their cells."""
        cells = Cells(source.points, torch.Generator(), previous=self.cells)
        geometry = type(self)(source, self._pairs, cells=cells)
        geometry.why = self.why
        return geometry

    def apply_kernel(self, eps: float, vectors: Tensor, *, others_only: bool = False) -> Tensor:
        """exp(-C/eps) @ vectors, for vectors `[m]` or `[m, p]`; see `plan` for what is exact."""
        plan, raw = self.plan(eps), eps * self.unit
        stacked = vectors.reshape(self.size, -1).to(self.dtype)[self.cells.members]
        result = torch.zeros(
            stacked.shape, dtype=accumulation_dtype(self.device), device=self.device
        )
        self._add_near(result, raw, stacked, plan.near, others_only=others_only)
        if plan.gains is not None:
            self._add_far(result, raw, stacked, plan.near, plan.gains)
        if others_only:
            result.masked_fill_(result.abs() < _NOTHING, 0.0)
        return result[self.cells.places].reshape(vectors.shape)

    def apply_log_kernel(self, eps: float, log_vector: Tensor) -> Tensor:
        """log(exp(-C/eps) @ exp(log_vector)) for `[m]`: a product for each band of magnitudes."""
        log_vector = log_vector.to(accumulation_dtype(self.device))
        top = float(log_vector.max())
        bands = ((top - log_vector) / _BAND).floor()
        result = torch.full_like(log_vector, -torch.inf)
        for band in sorted(set(bands[bands.isfinite()].tolist())):
            high = top - band * _BAND
            mass = torch.where(bands == band, (log_vector - high).clamp(max=0).exp(), 0.0)
            result = torch.logaddexp(result, self.apply_kernel(eps, mass).log() + high)
        return result

    def log_transport(self, eps: float, log_vector: Tensor) -> tuple[Tensor, Tensor]:
        """Target a ⊙ E(1/Z)/m and log Z for log a `[m]` of any size; E = exp(-C/eps), Z = E a."""
        log_reached = self.apply_log_kernel(eps, log_vector)
        log_target = log_vector + self.apply_log_kernel(eps, -log_reached)
        return torch.softmax(log_target, dim=0), log_reached

    def neighborhood(self, eps: float) -> Neighborhood:
        """Mass, effective size and radius of every neighbourhood of exp(-C/eps)."""
        ones = torch.ones(self.size, device=self.device)
        plan = self.plan(eps)
        mass, squares = self.apply_kernel(eps, ones), self.apply_kernel(eps / 2, ones)
        # Σ K C is minus the derivative of Σ exp(-bC) in b = 1/eps.
        nearby = [eps / (1 - _STEP), eps / (1 + _STEP)]
        self._plans |= dict.fromkeys(nearby, plan)
        wider, narrower = (self.apply_kernel(scale, ones) for scale in nearby)
        distance = (wider - narrower).clamp_(min=0) * (eps / (2 * _STEP))
        return Neighborhood(mass, mass.square() / squares, distance / mass)

    def neighbor_radius(self, neighbors: Sequence[int]) -> Tensor:
        """`[len(neighbors), n]`: exact, of all memories while these are few, then of a sample."""
        columns = [min(k, self.size - 1) for k in neighbors]
        panels = self._panels(self._evenly(max(1, _SEARCHED // self.size)))
        found = [smallest(costs, max(columns) + 1)[:, columns] for costs in panels]
        return torch.cat(found).T.to(accumulation_dtype(self.device)) / self.unit

    def kernel_scales(self, neighbors: Sequence[float]) -> list[float]:
        """For each wanted number the eps at which it is the median N_eff of up to 128 memories."""
        all_fit = self.size * _SCALE_ROWS * self.dtype.itemsize <= 2 * _PANEL_BYTES
        rows = self._evenly(_SCALE_ROWS if all_fit else _FEW_ROWS)
        costs = torch.cat(list(self._panels(rows)))
        return [scale_of_neighbors(costs, wanted) / self.unit for wanted in neighbors]

    def median_distance(self) -> float:
        """Median of C over the pairs of up to 4096 evenly spaced memories; see `Geometry`."""
        points = self.cells.points[self._evenly(_MEDIAN_ROWS)]
        distances = torch.nn.functional.pdist(points.to(accumulation_dtype(self.device)))
        distinct = distances[distances > 0]
        if len(distinct) == 0:
            return 0.0
        middle = median(distinct if 2 * len(distinct) < len(distances) else distances)
        return (middle if self._root else middle**2) / self.unit

    def cost_rows(self, memories: Tensor) -> Tensor:
        """C[memories] `[n, m]`, exactly."""
        return self._rows(self.cells.places[memories])[:, self.cells.places] / self.unit

    def plan(self, eps: float) -> Plan:
        """How the kernel of this scale is applied; found once, by a few exact rows."""
        if eps not in self._plans:
            self._plans[eps] = self._planned(eps)
        return self._plans[eps]

    def explained(self) -> str:
        """Which way the kernels took that were applied so far, and why."""
        return "; ".join(f"eps {eps:.3g} {plan.why}" for eps, plan in self._plans.items())

    def _planned(self, eps: float) -> Plan:
        nears = [self.cells.near(self._pairs), self.cells.near(0)]
        return planned(self._pilots, eps * self.unit, nears, self.cells.spread)

    def _pilots(self, count: int) -> Iterator[Rows]:
        """Exact rows, and what landmarks make of them."""
        cells = self.cells
        for places in torch.split(self._evenly(count), self._height(4)):
            own = cells.cell_of[places]
            there = self._cost(cells.points[places], cells.centers) - cells.between(self._root)[own]
            back = self._cost(cells.centers[own], cells.points)
            yield Rows(
                places, own, cells.cell_of, self._rows(places), there[:, cells.cell_of] + back
            )

    def _add_near(
        self, result: Tensor, eps: float, stacked: Tensor, near: Tensor, *, others_only: bool
    ) -> None:
        """Pairs of near cells, each once for both its cells."""
        points, spans = self.cells.points, self.cells.spans
        for a, rows in enumerate(spans):
            center = self.cells.centers[a]
            left = points[rows] - center
            kernel = self._kernel(left, left, eps).fill_diagonal_(0.0 if others_only else 1.0)
            result[rows] += kernel @ stacked[rows]
            for cols in self._columns(near[a, a + 1 :].nonzero()[:, 0] + a + 1):
                kernel = self._kernel(left, points[cols] - center, eps)
                result[rows] += kernel @ stacked[cols]
                result.index_add_(0, cols, (kernel.T @ stacked[rows]).to(result.dtype))

    def _columns(self, cells: Tensor) -> Iterator[Tensor]:
        """Places of the members of some cells, as many at a time as a tile is wide."""
        spans = [self.cells.spans[cell] for cell in cells.tolist()]
        if spans:
            places = torch.cat([torch.arange(s.start, s.stop, device=self.device) for s in spans])
            yield from torch.split(places, _WIDTH)

    def _kernel(self, left: Tensor, right: Tensor, eps: float) -> Tensor:
        """exp(-C/eps) of two sets of points, seen from about where they are."""
        lengths = left.square().sum(dim=1), right.square().sum(dim=1)
        rounding = torch.finfo(self.dtype).eps * float(lengths[0].max() + lengths[1].max())
        if self._root or rounding > _ROUNDING * eps:
            exponents = self._cost(left, right, exactly=rounding > _ROUNDING * eps).mul_(-1 / eps)
        else:
            exponents = torch.addmm(lengths[1] / -eps, left, right.T, alpha=2 / eps)
            exponents.sub_(lengths[0][:, None] / eps)
        return exponents.clamp_(LEAST_EXPONENT, 0).exp_()

    def _add_far(
        self, result: Tensor, eps: float, stacked: Tensor, near: Tensor, gains: Tensor
    ) -> None:
        """What landmarks carry from every cell to those that are not near it.

        With F_ib = exp((C(a, b) - C(i, b)) / eps) it is g_i g_j F_ib F_ja exp(-C(a, b) / eps).
        """
        cells = self.cells
        weighted = stacked * gains[:, None]
        carried = stacked.new_empty(len(cells), len(cells), stacked.shape[1])
        for b, cols in enumerate(cells.spans):
            carried[:, b] = self._factors(b, eps).T @ weighted[cols]
        kernel = (cells.between(self._root) / -eps).clamp_(min=LEAST_EXPONENT).exp_()
        carried *= kernel.masked_fill_(near, 0.0)[:, :, None]
        for a, rows in enumerate(cells.spans):
            result[rows] += (self._factors(a, eps) @ carried[a]) * gains[rows, None]

    def _factors(self, cell: int, eps: float) -> Tensor:
        """F `[n, c]` of the members of a cell."""
        center = self.cells.centers[cell]
        deviations = self.cells.points[self.cells.spans[cell]] - center
        others = self.cells.centers - center
        if self._root:
            costs = self._cost(deviations, others)
            exponents = (self.cells.between(root=True)[cell] - costs).mul_(1 / eps)
        else:
            lengths = deviations.square().sum(dim=1, keepdim=True)
            exponents = torch.addmm(lengths / -eps, deviations, others.T, alpha=2 / eps)
        return exponents.clamp_(LEAST_EXPONENT, LARGEST_EXPONENT).exp_()

    def _cost(self, left: Tensor, right: Tensor, *, exactly: bool = False) -> Tensor:
        """Costs of all pairs by products, which cancel for near ones, or exactly by differences."""
        if not exactly:
            return costs_between(left, right, root=self._root)
        distances = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
        return distances if self._root else distances.square_()

    def _rows(self, places: Tensor) -> Tensor:
        """Exact raw costs of some places to all, `[n, m]` by place."""
        points = self.cells.points
        costs = self._cost(points[places], points)
        near = costs < (math.sqrt(_CLOSE) if self._root else _CLOSE)
        for close in torch.split(near.nonzero(), _CLOSE_AT_ONCE):
            i, j = close.T
            squared = (points[places[i]] - points[j]).square().sum(dim=1)
            costs[i, j] = squared.sqrt() if self._root else squared
        return costs

    def _panels(self, places: Tensor) -> Iterator[Tensor]:
        return (self._rows(part) for part in torch.split(places, self._height(1)))

    def _height(self, panels: int) -> int:
        """Rows of each of so many panels that are held at once."""
        return max(1, _PANEL_BYTES // (panels * self.size * self.dtype.itemsize))

    def _evenly(self, count: int) -> Tensor:
        """Places of about `count` evenly spaced memories."""
        return self.cells.places[:: -(-self.size // count)]


class SparseGeometry(CellGeometry):
    """Near cells alone: for kernels so local that nothing else has a part in them."""

    def _planned(self, eps: float) -> Plan:
        return Plan(self.cells.near(self._pairs), None, "sparse: as asked for")


class LowRankGeometry(CellGeometry):
    """A memory's own cell exactly, all others by landmarks: for wide kernels."""

    def __init__(
        self,
        source: PointSource,
        pairs: int | None = 0,
        *,
        cells: Cells | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(source, pairs, cells=cells, seed=seed)

    def _planned(self, eps: float) -> Plan:
        own = self.cells.near(self._pairs)
        found = planned(self._pilots, eps * self.unit, [own], self.cells.spread)
        return Plan(own, found.gains, "low rank: as asked for")
