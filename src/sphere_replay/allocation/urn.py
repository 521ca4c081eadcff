"""Draws from very many weights, of which few change from one draw to the next."""

import torch
from torch import Tensor

from sphere_replay.numeric import accumulation_dtype, as_probabilities

_BLOCK = 128
"""About the root of a million; the work of a batch is then too little for torch to share it out to
threads, which on a busy machine takes longer than the work."""
SPARE = 16
"""Draws beyond twice as many as are wanted, where those that come again are passed over."""
_ATTEMPTS = 8


class Urn:
    """Non-negative weights `[m]` in blocks: a draw looks into few of them, a change renews its own.

    Draws depend on the weights alone, not on the changes that they came about by.

    Args:
        weights: Of the memories 0, ..., m - 1.
        room: Memories that there may come to be, by `put`; m unless given.
    """

    def __init__(self, weights: Tensor, room: int | None = None) -> None:
        blocks = -(-(room or len(weights)) // _BLOCK)
        self._size = len(weights)
        self._weights = torch.zeros(
            blocks * _BLOCK, dtype=accumulation_dtype(weights.device), device=weights.device
        )
        self._weights[: self._size] = weights
        self._sums = self._cumulated(torch.arange(blocks, device=weights.device))[:, -1].clone()

    def __len__(self) -> int:
        """Memories that have a weight."""
        return self._size

    def put(self, places: Tensor, weights: Tensor) -> None:
        """New weights `[n]` of some memories, int64 `[n]`."""
        self._weights[places] = weights.to(self._weights.dtype)
        self._size = max(self._size, int(places.max()) + 1)
        blocks = torch.unique(places // _BLOCK)
        self._sums[blocks] = self._cumulated(blocks)[:, -1]

    def draw(
        self, count: int, *, distinct: bool, generator: torch.Generator | None = None
    ) -> Tensor:
        """`count` memories; distinct ones are drawn one after the other from what is left."""
        found = self._places(count, distinct, generator)
        if len(found) < count:  # too few likely memories for a search
            probabilities = as_probabilities(self._weights[: self._size])
            return draw_of_all(probabilities, count, distinct=distinct, generator=generator)
        return found

    def _places(self, count: int, distinct: bool, generator: torch.Generator | None) -> Tensor:
        """Up to `count` draws by search; for distinct ones, what was drawn before is passed over.

        That is drawing from what is left.
        """
        ends = self._sums.cumsum(0)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        found = torch.empty(0, dtype=torch.int64, device=ends.device)
        if ends[-1] == 0:
            return found
        for _ in range(_ATTEMPTS if distinct else 1):
            wanted = 2 * count + SPARE if distinct else count
            points = torch.rand(wanted, generator=generator, dtype=ends.dtype, device=ends.device)
            points = _below(points * ends[-1], ends[-1])
            blocks = torch.searchsorted(ends, points, right=True)
            inside = _below(points - starts[blocks], self._sums[blocks])
            places = torch.searchsorted(self._cumulated(blocks), inside[:, None], right=True)
            found = torch.cat([found, blocks * _BLOCK + places[:, 0]])
            if distinct:
                found = first_of_each(found)
            if len(found) >= count:
                break
        return found[:count]

    def _cumulated(self, blocks: Tensor) -> Tensor:
        return self._weights.view(-1, _BLOCK).index_select(0, blocks).cumsum(dim=1)


def _below(points: Tensor, ends: Tensor) -> Tensor:
    """What rounding has put at an end or beyond it is before it again, where there is a weight."""
    return torch.minimum(points, torch.nextafter(ends, torch.zeros_like(ends)))


def draw_of_all(
    probabilities: Tensor, count: int, *, distinct: bool, generator: torch.Generator | None = None
) -> Tensor:
    """Indices `[count]`. Fewer likely memories than asked for: the rest is filled up uniformly."""
    likely = count if not distinct else min(count, int((probabilities > 0).sum()))
    indices = torch.multinomial(probabilities, likely, not distinct, generator=generator)
    if likely == count:
        return indices
    unlikely = (probabilities == 0).to(probabilities.dtype)
    filling = torch.multinomial(unlikely, count - likely, generator=generator)
    return torch.cat([indices, filling])


def first_of_each(values: Tensor) -> Tensor:
    """Without repetitions, in the order of first appearance."""
    distinct, belongs = torch.unique(values, return_inverse=True)
    order = torch.arange(len(values), device=values.device)
    first = order.new_full((len(distinct),), len(values)).scatter_reduce_(0, belongs, order, "amin")
    return values[first.sort().values]
