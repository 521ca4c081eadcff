"""Memories in cells: groups of near points, each around a center, stored one after the other.

A large geometry treats pairs of memories by the cells they lie in. Cells come from a few rounds of
k-means on a sample, and of another k-means within each group where there are many; those that grow
too large are cut along their longest direction, so that a dense cluster, or a thousand copies of
one point, costs no more than anything else.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sphere_replay.geometry.embeddings import UnitRows, lengths
from sphere_replay.geometry.threads import in_order
from sphere_replay.numeric import accumulation_dtype

MOST_CELLS, LEAST_MEMBERS = 8192, 64
"""Cells of at least so many members on average until there are so many, then larger ones."""

_MOST_GROUPS = 2048
"""Cells that are found at once; more are parts of these."""
_SEEDINGS = 4
"""Times that centers to begin with are drawn; but for the first, where none is near."""
_COINCIDENT = 1e-12
"""Squared distances that count as none."""
_ROUNDS = 6
_SAMPLED_PER_CELL = 32
OVERSIZE = 2
"""Times the average size, at which a cell is cut."""
_AT_ONCE, _SORTED_AT_ONCE = 1 << 22, 1 << 14
"""Distances to centers held at a time, and rows that are sorted."""


class Cells:
    """Unit rows `[m, d]` in float32, sorted by cell.

    Args:
        rows: The points.
        generator: Chooses the sample that centers are found by.

    Attributes:
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

    def __init__(self, rows: UnitRows, generator: torch.Generator) -> None:
        points = rows.all(torch.float32)
        size, dim = points.shape
        count = max(1, min(MOST_CELLS, size // LEAST_MEMBERS))
        most = OVERSIZE * max(1, size // count)
        groups = [
            part for group in _found(points, count, generator) for part in _cut(group, points, most)
        ]
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
        for start in range(0, size, _SORTED_AT_ONCE):
            part = slice(start, start + _SORTED_AT_ONCE)
            self.points[part] = rows.chosen(self.members[part])
        self.centers = torch.stack([self.points[span].mean(dim=0) for span in self.spans])
        self.lengths = squared_lengths(self.centers)
        self._near: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.spans)

    def deviations(self, cell: int) -> Tensor:
        """How the members of a cell lie around its center, `[n, d]`."""
        return self.points[self.spans[cell]] - self.centers[cell]

    def near(self, pairs: int) -> Tensor:
        """Each cell with itself, and with the nearest of others until these hold `pairs` memories.

        bool `[c, c]`, symmetric.
        """
        if pairs not in self._near:
            near = torch.zeros(len(self), len(self), dtype=torch.bool, device=self.points.device)
            most = min(len(self), 1 + 4 * pairs * len(self) // len(self.points))
            centers = self.centers.to(accumulation_dtype(self.centers.device))
            for rows in torch.split(torch.arange(len(self), device=near.device), 256):
                costs = costs_between(centers[rows], centers, root=False)
                order = costs.topk(most, dim=1, largest=False).indices
                sizes = self.sizes[order]
                before = sizes.cumsum(dim=1) - sizes
                near[rows] = near[rows].scatter_(1, order, before < pairs)
            self._near[pairs] = (near | near.T).fill_diagonal_(True)
        return self._near[pairs]


def squared_lengths(points: Tensor) -> Tensor:
    """|a|² `[n]` of points `[n, d]`, in one pass over them."""
    return lengths(points).squeeze(1).square_()


def costs_between(
    left: Tensor, right: Tensor, *, root: bool, lengths: Tensor | None = None
) -> Tensor:
    """|a - b|² of all pairs `[n, k]`, or its square root, by products; `lengths` are |b|²."""
    lengths = squared_lengths(right) if lengths is None else lengths
    squared = torch.addmm(lengths, left, right.T, alpha=-2)
    squared.add_(squared_lengths(left)[:, None]).clamp_(min=0)
    return squared.sqrt_() if root else squared


def _centers(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """k-means on a sample, from `count` of its points."""
    order = torch.randperm(len(points), generator=generator, device="cpu")
    chosen = order[: _SAMPLED_PER_CELL * count]
    sample = points[chosen.to(points.device)]
    return _k_means(sample, _seeds(sample, count, generator))


def _seeds(sample: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` points of a sample that leave no part of it without one.

    Of as many that are drawn alike, a cluster in three would have none, and share a cell with
    another. Here most are drawn by their squared distance to those that were drawn before.
    """
    centers = sample[: -(-count // _SEEDINGS)]
    while len(centers) < count:
        apart = (sample - centers[_assign(sample, centers)]).square_().sum(dim=1)
        chances = apart.clamp_(min=_COINCIDENT).cpu()
        number = min(-(-count // _SEEDINGS), count - len(centers))
        drawn = torch.multinomial(chances, number, generator=generator)
        centers = torch.cat([centers, sample[drawn.to(sample.device)]])
    return centers


def _k_means(points: Tensor, centers: Tensor) -> Tensor:
    """A few rounds from the given centers on; one that loses all its points stays."""
    for _ in range(_ROUNDS):
        belongs = _assign(points, centers)
        sums = torch.zeros_like(centers).index_add_(0, belongs, points)
        numbers = belongs.bincount(minlength=len(centers))[:, None]
        centers = torch.where(numbers > 0, sums / numbers.clamp(min=1), centers)
    return centers


def _found(points: Tensor, count: int, generator: torch.Generator) -> list[Tensor]:
    """About `count` groups of near points, as indices; many in two steps."""
    groups = min(count, _MOST_GROUPS)
    whole = list(_members(_assign(points, _centers(points, groups, generator)), groups))
    if count == groups:
        return whole

    def split(group: Tensor) -> list[Tensor]:
        parts = round(len(group) * count / len(points))
        if parts < 2:
            return [group]
        inside = points[group]
        centers = _k_means(inside, inside[:: -(-len(group) // parts)])
        return [group[part] for part in _members(_assign(inside, centers), len(centers))]

    return [part for parts in in_order(split, whole, points.device) for part in parts]


def _members(belongs: Tensor, count: int) -> Sequence[Tensor]:
    """Who belongs to each of `count` groups."""
    return torch.split(belongs.argsort(stable=True), belongs.bincount(minlength=count).tolist())


def _assign(points: Tensor, centers: Tensor) -> Tensor:
    """The nearest center of each point, `[m]`."""
    half = centers.square().sum(dim=1) / 2
    step = max(1, _AT_ONCE // len(centers))
    result = torch.empty(len(points), dtype=torch.int64, device=points.device)

    def nearest(start: int) -> None:  # in place: small results would hold on to large blocks
        part = slice(start, start + step)
        result[part] = torch.addmm(half, points[part], centers.T, alpha=-1).argmin(dim=1)

    for _ in in_order(nearest, range(0, len(points), step), points.device):
        pass
    return result


def _cut(group: Tensor, points: Tensor, most: int) -> Iterator[Tensor]:
    """A group of memories in parts of at most `most`, in order along its longest direction."""
    if len(group) <= most:
        if len(group):
            yield group
        return
    spread = points[group]
    spread = spread - spread.mean(dim=0)
    direction = spread[spread.square().sum(dim=1).argmax()]
    for _ in range(_ROUNDS):
        direction = spread.T @ (spread @ direction)
        direction = direction / direction.norm().clamp(min=1e-30)
    order = group[(spread @ direction).argsort()]
    parts = -(-len(group) // most)
    yield from order.tensor_split(parts)
