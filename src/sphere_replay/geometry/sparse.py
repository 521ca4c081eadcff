"""A kernel of near pairs alone: for kernels so local that nothing else has a part in them.

K_ij = exp(-C_ij/eps) where i is among the nearest of j, or j among those of i, and 0 elsewhere;
K_ii = 1. Pairs are searched for once; a product is then a pass over them. Where features stay, so
do the pairs.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from sphere_replay.geometry.approximate import NOTHING, ApproximateGeometry
from sphere_replay.geometry.calibration import effective_sizes
from sphere_replay.geometry.far import LEAST_EXPONENT
from sphere_replay.geometry.kernels import kernel_of
from sphere_replay.geometry.neighbors import Kept, Neighbors, neighbors_of
from sphere_replay.geometry.pilot import PILOTS
from sphere_replay.geometry.protocol import Neighborhood
from sphere_replay.geometry.sources import PointSource
from sphere_replay.geometry.threads import in_order, slices
from sphere_replay.numeric import accumulation_dtype, median

MOST, LEAST = 256, 64
"""Others that a memory looks for, and those of a memory so large that more would not fit."""
_LOOKED_FOR = 1 << 25
"""Pairs that are looked for, unless that leaves too few for each memory."""

_AT_ONCE, _VOTES_AT_ONCE = 1 << 18, 1 << 22
"""Pairs that a thread works on, and numbers of votes."""


class SparseGeometry(ApproximateGeometry):
    """Near pairs, each for both its memories.

    Args:
        source: Points whose pairwise distances are the costs.
        count: How many others a memory looks for that is not in `before`; unless given 256, and
            fewer of more than 131,072 memories.
        before: Pairs of points that some of these may still be, which are kept.
    """

    def __init__(
        self,
        source: PointSource,
        count: int | None = None,
        *,
        before: Kept | None = None,
    ) -> None:
        points = source.points.all(torch.float32)
        everybody = torch.arange(len(points), device=points.device)
        super().__init__(points, everybody, everybody, root=source.root)
        if count is None:
            count = min(MOST, max(LEAST, _LOOKED_FOR // self.size))
        known = before if isinstance(before, Neighbors) else None
        self.neighbors = neighbors_of(points, count, known)
        self._scales: dict[float, None] = {}

    @property
    def kept(self) -> Neighbors:
        """The pairs."""
        return self.neighbors

    def _product(self, eps: float, stacked: Tensor, *, others_only: bool) -> Tensor:
        self._scales[eps] = None
        vectors = stacked.T.contiguous()  # a gather of single numbers is the fastest

        def sums(part: slice) -> Tensor:
            others, costs, counts = self._pairs(part)
            kernel = self._kernel(costs, eps)
            return torch.stack(
                [_summed(kernel * vector.index_select(0, others), counts) for vector in vectors], 1
            )

        result = self._of_all(sums)
        return result if others_only else result.add_(stacked)

    def neighborhood(self, eps: float) -> Neighborhood:
        """Mass, effective size and radius of every neighbourhood of exp(-C/eps)."""

        def sums(part: slice) -> Tensor:
            _, costs, counts = self._pairs(part)
            kernel = self._kernel(costs, eps)
            numbers = (kernel, kernel.square(), kernel * costs)
            return torch.stack([_summed(each, counts) for each in numbers], 1)

        mass, squares, distance = self._of_all(sums).T
        mass, squares = mass + 1, squares + 1
        return Neighborhood(mass, mass.square() / squares, distance / (mass * self.unit))

    def sums_by_class(
        self, eps: float, belongs: Tensor, count: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """See `ApproximateGeometry`."""

        def sums(part: slice) -> tuple[Tensor, Tensor]:
            others, costs, counts = self._pairs(part)
            rows = torch.arange(len(counts), device=self.device).repeat_interleave(counts)
            total = torch.zeros(len(counts) * count, device=self.device)
            total.index_add_(0, rows * count + belongs[others], self._kernel(costs, eps))
            total.masked_fill_(total < NOTHING, 0.0)
            return self.order[part], total.view(-1, count)

        return in_order(sums, self._parts(_VOTES_AT_ONCE // count), self.device)

    def explained(self) -> str:
        """Which share of each kernel the pairs hold, on average over a few memories."""
        chosen = self._spread(PILOTS)
        costs = torch.cat(list(self._panels(chosen)))
        ones = torch.ones(self.size, 1, device=self.device)
        told = []
        for eps in list(self._scales):
            kernel = self._kernel(costs, eps)
            held = self._product(eps, ones, others_only=False)[chosen, 0] / kernel.sum(dim=1)
            size = median(effective_sizes(costs, eps * self.unit))
            share = f"{float(held.mean()):.2%}"
            told.append(f"eps {eps:.3g} exact N_eff {size:.0f}, pairs hold {share} of the kernel")
        return "; ".join(told)

    def _kernel(self, costs: Tensor, eps: float) -> Tensor:
        return kernel_of(costs, eps * self.unit, least=LEAST_EXPONENT)

    def _pairs(self, part: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Those of some memories: who is near, at which raw cost, and how many each has."""
        starts = self.neighbors.starts[part.start : part.stop + 1]
        pairs = slice(int(starts[0]), int(starts[-1]))
        costs = self.neighbors.squared[pairs]
        return self.neighbors.others[pairs], costs.sqrt() if self._root else costs, starts.diff()

    def _of_all(self, sums: Callable[[slice], Tensor]) -> Tensor:
        """What is summed for some memories at a time, for all."""
        found = in_order(sums, self._parts(self.size), self.device)
        return torch.cat(list(found)).to(accumulation_dtype(self.device))

    def _parts(self, most: int) -> list[slice]:
        """Some memories at a time, at most so many."""
        together = _AT_ONCE * self.size // max(1, len(self.neighbors.others))
        return slices(self.size, max(1, min(most, together)))


def _summed(values: Tensor, counts: Tensor) -> Tensor:
    return torch.segment_reduce(values, "sum", lengths=counts, unsafe=True)
