"""Memories in cells: groups of near points, each around a center, stored one after the other.

A large geometry treats pairs of memories by the cells they lie in.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.geometry.embeddings import UnitRows, lengths
from sphere_replay.geometry.grouping import Grouping, grouped
from sphere_replay.geometry.threads import in_order, slices
from sphere_replay.numeric import accumulation_dtype

_SORTED_AT_ONCE, _CELLS_AT_ONCE = 1 << 14, 256
"""Rows that are sorted at a time, and cells whose neighbours are looked for."""


class Slots(NamedTuple):
    """As many for each of a few cells as the largest has members."""

    places: Tensor
    """Of each member among all slots, `[n]`."""
    cells: int
    most: int

    def filled(self, rows: Tensor) -> Tensor:
        """Rows `[n, k]` of the members in their slots, `[cells, most, k]`; others are zero."""
        slots = rows.new_zeros(self.cells * self.most, rows.shape[1])
        return slots.index_copy_(0, self.places, rows).view(self.cells, self.most, -1)

    def emptied(self, slots: Tensor) -> Tensor:
        """The members' rows again, `[n, k]`."""
        return slots.flatten(0, 1).index_select(0, self.places)


class Cells:
    """Unit rows `[m, d]` in float32, sorted by cell.

    Args:
        rows: The points.
        generator: Chooses the sample that cells are found by.
        before: A grouping of features that some of these may still be, whose cells are kept.

    Attributes:
        grouping: Who lies together.
        points: The rows, cell after cell.
        members: Which memory each place holds, `[m]`; `places` is the inverse.
        cell_of: Cell of each place, `[m]`.
        spans: The places of each cell, `starts` the first of them, `sizes` how many these are.
        centers: Mean of each cell, `[c, d]`, and `lengths`: |c|².
    """

    points: Tensor
    members: Tensor
    places: Tensor
    cell_of: Tensor
    centers: Tensor

    def __init__(
        self, rows: UnitRows, generator: torch.Generator, before: Grouping | None = None
    ) -> None:
        points = rows.all(torch.float32)
        size, dim = points.shape
        self.grouping = grouped(rows.features, points, generator, before)
        groups = self.grouping.members()
        del points  # the sorted copy takes its place
        self.members = torch.cat(groups)
        self.places = torch.empty_like(self.members)
        device = self.members.device
        self.places[self.members] = torch.arange(size, device=device)
        self.sizes = torch.tensor([len(group) for group in groups], device=device)
        self.cell_of = torch.arange(len(groups), device=device).repeat_interleave(self.sizes)
        stops = self.sizes.cumsum(0)
        self.starts = stops - self.sizes
        bounds = zip(self.starts.tolist(), stops.tolist(), strict=True)
        self.spans = [slice(start, stop) for start, stop in bounds]
        self.points = torch.empty(size, dim, device=device)

        def sort(part: slice) -> None:
            self.points[part] = rows.chosen(self.members[part])

        for _ in in_order(sort, slices(size, _SORTED_AT_ONCE), device):
            pass
        self.centers = torch.stack([self.points[span].mean(dim=0) for span in self.spans])
        self.lengths = squared_lengths(self.centers)
        self._near: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.spans)

    def together(self, batch: Tensor) -> tuple[slice, Tensor]:
        """The places of some adjacent cells, and for each of these which of the cells it is in."""
        first, last = int(batch[0]), int(batch[-1])
        places = slice(self.spans[first].start, self.spans[last].stop)
        return places, self.cell_of[places] - first

    def around(self, batch: Tensor) -> Tensor:
        """How all members of some adjacent cells lie around their centers, `[n, d]`."""
        places, own_cell = self.together(batch)
        return self.points[places] - self.centers[batch].index_select(0, own_cell)

    def slots(self, batch: Tensor) -> Slots:
        """Where the members of some adjacent cells are put for products of all these cells."""
        sizes, (_, own_cell) = self.sizes[batch], self.together(batch)
        most = int(sizes.max())
        before = torch.arange(len(batch), device=sizes.device) * most - (sizes.cumsum(0) - sizes)
        places = torch.arange(len(own_cell), device=sizes.device) + before[own_cell]
        return Slots(places, len(batch), most)

    def near(self, pairs: int) -> Tensor:
        """Each cell with itself, and with the nearest of others until these hold `pairs` memories.

        bool `[c, c]`, symmetric.
        """
        if pairs not in self._near:
            near = torch.zeros(len(self), len(self), dtype=torch.bool, device=self.points.device)
            most = min(len(self), 1 + 4 * pairs * len(self) // len(self.points))
            centers = self.centers.to(accumulation_dtype(self.centers.device))

            def look(rows: slice) -> None:
                squared = squared_between(centers[rows], centers)
                order = squared.topk(most, dim=1, largest=False).indices
                sizes = self.sizes[order]
                before = sizes.cumsum(dim=1) - sizes
                near[rows].scatter_(1, order, before < pairs)

            for _ in in_order(look, slices(len(self), _CELLS_AT_ONCE), near.device):
                pass
            self._near[pairs] = (near | near.T).fill_diagonal_(True)
        return self._near[pairs]

    def columns(self, near: Tensor, *, later: bool = True) -> list[Tensor]:
        """Of each cell its places, and those of `later` cells that are near, or of all; int32."""
        result: list[Tensor] = []
        for first in range(0, len(self), _CELLS_AT_ONCE):
            some = near[first : first + _CELLS_AT_ONCE]
            some = some.triu(first) if later else some
            cells = some.nonzero()[:, 1]
            sizes = self.sizes[cells]
            places = (self.starts[cells] - (sizes.cumsum(0) - sizes)).repeat_interleave(sizes)
            places += torch.arange(len(places), device=places.device)
            counts = (some * self.sizes).sum(dim=1).tolist()
            result += torch.split(places.to(torch.int32), counts)
        return result


def squared_lengths(points: Tensor) -> Tensor:
    """|a|² `[n]` of points `[n, d]`, in one pass over them."""
    return lengths(points).squeeze(1).square_()


def squared_between(left: Tensor, right: Tensor, lengths: Tensor | None = None) -> Tensor:
    """|a - b|² of all pairs `[n, k]`, by products; `lengths` are |b|²."""
    lengths = squared_lengths(right) if lengths is None else lengths
    squared = torch.addmm(lengths, left, right.T, alpha=-2)
    return squared.add_(squared_lengths(left)[:, None]).clamp_(min=0)
