"""Geometries for more memories than have pairs to spare: near pairs exactly, the rest by moments.

Memories lie in cells (see `cells`). Pairs of near cells have their exact kernel, and the others are
carried from cell to cell by the moments of how members lie in them (see `far`). A few exact rows
tell which of the two a scale needs (see `pilot`). Row sums are positive: K_ii = 1 is always exact.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor

from sphere_replay.geometry.approximate import NOTHING, ApproximateGeometry
from sphere_replay.geometry.cells import Cells, squared_between, squared_lengths
from sphere_replay.geometry.far import LEAST_EXPONENT, Far
from sphere_replay.geometry.grouping import Grouping
from sphere_replay.geometry.moments import Moments
from sphere_replay.geometry.neighbors import Kept
from sphere_replay.geometry.pilot import PILOTS, Pilots, Plan, planned
from sphere_replay.geometry.protocol import Neighborhood
from sphere_replay.geometry.sources import PointSource, recompute_close
from sphere_replay.geometry.threads import in_order, slices
from sphere_replay.numeric import accumulation_dtype

PAIRS = 1280
"""Memories near each one, about, whose kernel is exact; at least those of its own cell."""
_WIDER, _PAIRS_AT_MOST = (2, 4, 8), 1 << 30
"""Times as many, where that leaves nothing, or moments cannot carry the rest; more than the first
only as long as all together are no more than this."""

_ROUNDING = 1e-3
"""Times eps: larger rounding errors of a distance are not tolerated."""
_COARSE = 0.01
"""Scales beside which the rounding of distances on the sphere, about 1e-6, counts for nothing."""
_WIDTH, _TOGETHER = 2048, 64
"""Columns of a tile, and cells whose tiles are worked on by one thread after another."""

_VOTING_TOGETHER, _VOTES_HELD, _UNHEARD = 8, 1 << 22, 1e-3
"""The same where a memory has a number for each class, and such numbers in a piece; and a share of
the kernel's mass without which votes are counted."""

_STEP = 1e-3
"""Relative step of the derivative behind mean distances."""


class CellGeometry(ApproximateGeometry):
    """Kernel products in time proportional to m; which way they take depends on the scale.

    Args:
        source: Points whose pairwise distances are the costs.
        pairs: How many memories near each one are exact; `PAIRS` unless given.
        seed: Of the sample that cells are found by, and of nothing else.
        before: A grouping of features that some of these may still be, whose cells are kept.
    """

    def __init__(
        self,
        source: PointSource,
        pairs: int | None = None,
        *,
        seed: int = 0,
        before: Kept | None = None,
    ) -> None:
        self._pairs = PAIRS if pairs is None else pairs
        known = before if isinstance(before, Grouping) else None
        self.cells = Cells(source.points, torch.Generator().manual_seed(seed), known)
        cells = self.cells
        super().__init__(cells.points, cells.members, cells.places, root=source.root)
        self._plans: dict[float, Plan] = {}

    @property
    def kept(self) -> Grouping:
        """Who lies together."""
        return self.cells.grouping

    def _product(self, eps: float, stacked: Tensor, *, others_only: bool) -> Tensor:
        return self._by_plan(self.plan(eps), eps, stacked, others_only=others_only)

    def _by_plan(self, plan: Plan, eps: float, stacked: Tensor, *, others_only: bool) -> Tensor:
        result = self._near(eps * self.unit, stacked, plan.near, others_only=others_only)
        if plan.far is not None:
            result += plan.far.apply(stacked)
        return result

    def neighborhood(self, eps: float) -> Neighborhood:
        """Mass, effective size and radius of every neighbourhood of exp(-C/eps)."""
        ones = torch.ones(self.size, device=self.device)
        plan = self.plan(eps)

        def mass_at(scale: float) -> Tensor:
            far = None if plan.far is None else plan.far.at_scale(scale * self.unit)
            moved = replace(plan, far=far)
            found = self._by_plan(moved, scale, ones[:, None], others_only=False)
            return found[self.cells.places, 0]

        mass, squares = self.apply_kernel(eps, ones), self.apply_kernel(eps / 2, ones)
        # Σ K C is minus the derivative of Σ exp(-bC) in b = 1/eps.
        wider, narrower = mass_at(eps / (1 - _STEP)), mass_at(eps / (1 + _STEP))
        distance = (wider - narrower).clamp_(min=0) * (eps / (2 * _STEP))
        effective = (mass.square() / squares).clamp_(max=self.size)
        return Neighborhood(mass, effective, distance / mass)

    def sums_by_class(
        self, eps: float, belongs: Tensor, count: int
    ) -> Iterator[tuple[Tensor, Tensor]] | None:
        """See `ApproximateGeometry`; none if far memories, who are not told apart, have a part."""
        plan, raw = self.plan(eps), eps * self.unit
        if plan.share > _UNHEARD:
            return None
        spans, there = self.cells.spans, belongs[self.cells.members]
        columns = self.cells.columns(plan.near, later=False)

        def sums(batch: slice) -> tuple[Tensor, Tensor]:
            places = slice(spans[batch.start].start, spans[batch.stop - 1].stop)
            members = self.cells.members[places]
            total = torch.zeros(len(members), count, device=self.device)
            for cell, cols in enumerate(columns[batch], batch.start):
                own = spans[cell]
                rows = total[own.start - places.start : own.stop - places.start]
                for part in torch.split(cols, _WIDTH):
                    kernel = self._kernel(cell, part, raw)
                    here = ((part >= own.start) & (part < own.stop)).nonzero()[:, 0]
                    kernel[part[here] - own.start, here] = 0.0  # nobody votes on itself
                    rows.index_add_(1, there.index_select(0, part), kernel)
            return members, total.masked_fill_(total < NOTHING, 0.0)

        held = _VOTES_HELD // (count * int(self.cells.sizes.max()))
        together = max(1, min(_VOTING_TOGETHER, held))
        return in_order(sums, slices(len(spans), together), self.device)

    def plan(self, eps: float) -> Plan:
        """How the kernel of this scale is applied; found once, by a few exact rows."""
        if eps not in self._plans:
            self._plans[eps] = self._planned(eps)
        return self._plans[eps]

    def explained(self) -> str:
        """Which way the kernels took that were applied so far, and why."""
        return "; ".join(f"eps {eps:.3g} {plan.why}" for eps, plan in self._plans.items())

    @cached_property
    def _moments(self) -> Moments:
        return Moments(self.cells)

    def _planned(self, eps: float) -> Plan:
        nears = [self.cells.near(self._pairs), self.cells.near(0)]
        counts = [times * self._pairs for times in _WIDER]
        few = [count for count in counts[1:] if count * self.size <= _PAIRS_AT_MOST]
        wider = [partial(self.cells.near, count) for count in counts[:1] + few]
        return self._plan_of(nears, eps * self.unit, wider)

    def _plan_of(
        self, nears: Sequence[Tensor], raw: float, wider: Sequence[Callable[[], Tensor]] = ()
    ) -> Plan:
        def far(near: Tensor) -> Far:
            return Far(self.cells, self._moments, raw, near, root=self._root)

        places = self._spread(PILOTS)
        pilots = Pilots(places, partial(self._rows, places))
        return planned(pilots, raw, self.cells.cell_of, nears, far, wider)

    def _near(self, eps: float, stacked: Tensor, near: Tensor, *, others_only: bool) -> Tensor:
        """Products `[m, p]` over pairs of near cells, each pair once for both its cells."""
        spans, sizes = self.cells.spans, self.cells.sizes.tolist()
        vectors = stacked.T.contiguous()  # a few rows times a tile are faster than a few columns
        result = torch.zeros(
            vectors.shape, dtype=accumulation_dtype(self.device), device=self.device
        )

        def products(batch: range) -> tuple[Tensor, Tensor, Tensor]:
            """Sums of the batch's places, and what its cells give to those of later ones."""
            along, places, across = [], [], []
            for cell in batch:
                here, own = vectors[:, spans[cell]], sizes[cell]
                cols, *others = torch.split(columns[cell], max(_WIDTH, own))
                kernel = self._kernel(cell, cols, eps)  # the first columns are the cell's own
                kernel.fill_diagonal_(0.0 if others_only else 1.0)
                sums = vectors.index_select(1, cols) @ kernel.T
                places.append(cols[own:])
                across.append(here @ kernel[:, own:])
                for cols in others:
                    kernel = self._kernel(cell, cols, eps)
                    sums += vectors.index_select(1, cols) @ kernel.T
                    places.append(cols)
                    across.append(here @ kernel)
                along.append(sums)
            return torch.cat(along, 1), torch.cat(places), torch.cat(across, 1)

        columns, count = self.cells.columns(near), len(spans)
        batches = [range(i, min(i + _TOGETHER, count)) for i in range(0, count, _TOGETHER)]
        found = in_order(products, batches, self.device)
        for batch, (along, places, across) in zip(batches, found, strict=True):
            result[:, spans[batch[0]].start : spans[batch[-1]].stop] += along
            for total, part in zip(result, across.to(result.dtype), strict=True):
                total.index_add_(0, places, part)  # of one dimension it is several times faster
        return result.T

    def _kernel(self, cell: int, cols: Tensor, eps: float) -> Tensor:
        """exp(-C/eps) between the members of a cell and the given places."""
        points, rows = self.cells.points, self.cells.spans[cell]
        left, right = points[rows], points.index_select(0, cols)
        if not self._root and eps > _COARSE:
            lengths = self._lengths.index_select(0, cols).mul_(-1 / eps)
            exponents = torch.addmm(lengths, left, right.T, alpha=2 / eps)
            exponents.sub_(self._lengths[rows, None], alpha=1 / eps)
        else:  # seen from where they are, fewer digits cancel
            center = self.cells.centers[cell]
            left, right = left - center, right.sub_(center)
            exponents = self._seen_close(left, right, eps).mul_(-1 / eps)
        # On tiles this small exp() is as fast as the powers of two of `kernels`.
        return exponents.clamp_(LEAST_EXPONENT, 0).exp_()

    def _seen_close(self, left: Tensor, right: Tensor, eps: float) -> Tensor:
        """Costs of all pairs, by differences where products would cancel too much for the scale."""
        own, others = (float(squared_lengths(points).max()) for points in (left, right))
        if not self._root:  # who is out of reach has no part, however coarse its distance
            others = min(others, (own**0.5 + (-LEAST_EXPONENT * eps) ** 0.5) ** 2)
        rounding = torch.finfo(self.dtype).eps * (own + others)
        if self._root:
            squared = squared_between(left, right)
            # Where a distance is small, its root shows more of the rounding than the square does.
            recompute_close(squared, left, right, (rounding / (2 * _ROUNDING * eps)) ** 2)
            return squared.sqrt_()
        if rounding > _ROUNDING * eps:
            distances = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
            return distances.square_()
        return squared_between(left, right)


class LowRankGeometry(CellGeometry):
    """A memory's own cell exactly, all others by moments: for wide kernels."""

    def __init__(
        self,
        source: PointSource,
        pairs: int | None = 0,
        *,
        seed: int = 0,
        before: Kept | None = None,
    ) -> None:
        super().__init__(source, pairs, seed=seed, before=before)

    def _planned(self, eps: float) -> Plan:
        found = self._plan_of([self.cells.near(self._pairs)], eps * self.unit)
        return replace(found, why="low rank: as asked for")
