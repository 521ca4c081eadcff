"""Draws from very many weights, of which few change from one draw to the next."""

import torch
from torch import Tensor

from sphere_replay.numeric import accumulation_dtype

_BLOCK = 128
"""About the root of a million; the work of a batch is then too little for torch to share it out to
threads, which on a busy machine takes longer than the work."""
SPARE = 16
"""Draws beyond twice as many as are wanted, where those that come again are passed over."""


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
        """`count` memories; distinct ones are drawn one after the other from what is left.

        Fewer likely memories than asked for: the rest is filled up uniformly.
        """
        if distinct:
            return self._filled_up(self._distinct(count, generator), count, generator)
        if not self._sums.any():
            return torch.randint(self._size, (count,), generator=generator, device=self._device)
        return self._search(count, generator)

    def _distinct(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Up to `count`, by search: what was drawn before is passed over.

        That is drawing from what is left. Where a few likely memories hide all others, these are
        put aside, and the search goes on without them.
        """
        found = torch.empty(0, dtype=torch.int64, device=self._device)
        aside = self._weights.new_empty(0)
        try:
            while len(found) < count and self._sums.any():
                new = first_of_each(self._search(2 * (count - len(found)) + SPARE, generator))
                found = torch.cat([found, new])
                if len(found) < count:
                    aside = torch.cat([aside, self._weights[new]])
                    self.put(new, aside.new_zeros(len(new)))
        finally:
            if len(aside):
                self.put(found[: len(aside)], aside)
        return found[:count]

    def _filled_up(self, found: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
        """With anybody who is not among the found; uniformly."""
        while len(found) < count:
            if 2 * count > self._size:
                more = torch.randperm(self._size, generator=generator, device=self._device)
            else:
                wanted = (2 * (count - len(found)) + SPARE,)
                more = torch.randint(self._size, wanted, generator=generator, device=self._device)
            found = first_of_each(torch.cat([found, more]))
        return found[:count]

    def _search(self, count: int, generator: torch.Generator | None) -> Tensor:
        """`count` independent draws."""
        ends = self._sums.cumsum(0)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        points = torch.rand(count, generator=generator, dtype=ends.dtype, device=ends.device)
        points = _below(points * ends[-1], ends[-1])
        blocks = torch.searchsorted(ends, points, right=True)
        inside = _below(points - starts[blocks], self._sums[blocks])
        places = torch.searchsorted(self._cumulated(blocks), inside[:, None], right=True)
        return blocks * _BLOCK + places[:, 0]

    @property
    def _device(self) -> torch.device:
        return self._weights.device

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
