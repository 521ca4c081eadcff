"""Memories in cells: groups of near points, each around a center, stored one after the other.

A large geometry treats pairs of memories by the cells they lie in. Cells come from a few rounds of
k-means on a sample; those that grow too large are cut along their longest direction, so that a
dense cluster, or a thousand copies of one point, costs no more than anything else.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from sphere_replay.geometry.embeddings import UnitRows
from sphere_replay.numeric import accumulation_dtype

MOST_CELLS, LEAST_MEMBERS, MOST_MEMBERS = 1024, 64, 1024
"""Cells of at least so many members on average until there are so many, then larger ones."""

_ROUNDS = 6
_SAMPLED_PER_CELL = 32
OVERSIZE = 2
"""Times the average size, at which a cell is cut."""
_ASSIGNED_AT_ONCE = 1 << 23
"""Distances to centers held at a time."""


class Cells:
    """Unit rows `[m, d]` in float32, sorted by cell.

    Args:
        rows: The points.
        generator: Chooses the sample that centers are found by.
        previous: Cells of the same memories before some of them moved. Its centers are kept, and
            those that did not move keep their cell without a search.

    Attributes:
        points: The rows, cell after cell.
        members: Which memory each place holds, `[m]`; `places` is the inverse.
        cell_of: Cell of each place, `[m]`.
        spans: The places of each cell, and `sizes` how many these are.
        centers: Mean of each cell, `[c, d]`.
        spread: How far each place lies from its center, in units in which landmarks err, `[m]`.
    """

    points: Tensor
    members: Tensor
    places: Tensor
    cell_of: Tensor
    centers: Tensor

    def __init__(
        self, rows: UnitRows, generator: torch.Generator, previous: "Cells | None" = None
    ) -> None:
        points = rows.all(torch.float32)
        size = len(points)
        count = max(1, min(MOST_CELLS, size // LEAST_MEMBERS), size // MOST_MEMBERS)
        if previous is None:
            belongs = _assign(points, _centers(points, count, generator))
        else:
            count = len(previous)
            belongs = previous.cell_of[previous.places]
            moved = (points != previous.points[previous.places]).any(dim=1).nonzero()[:, 0]
            belongs[moved] = _assign(points[moved], previous.centers)
        sizes = belongs.bincount(minlength=count).tolist()
        groups = [
            part
            for group in torch.split(belongs.argsort(stable=True), sizes)
            for part in _cut(group, points, OVERSIZE * max(1, size // count))
        ]
        self.members = torch.cat(groups)
        self.places = torch.empty_like(self.members)
        self.places[self.members] = torch.arange(size, device=points.device)
        self.sizes = torch.tensor([len(group) for group in groups], device=points.device)
        self.cell_of = torch.arange(len(groups), device=points.device).repeat_interleave(self.sizes)
        stops = self.sizes.cumsum(0).tolist()
        self.spans = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
        self.points = points[self.members]
        self.centers = torch.stack([self.points[span].mean(dim=0) for span in self.spans])
        self.spread = self._spread()
        self._between: dict[bool, Tensor] = {}
        self._near: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.spans)

    def between(self, root: bool) -> Tensor:
        """Costs between centers, `[c, c]`."""
        if root not in self._between:
            centers = self.centers.to(accumulation_dtype(self.centers.device))
            costs = costs_between(centers, centers, root=root).fill_diagonal_(0)
            self._between[root] = costs.to(self.centers.dtype)
        return self._between[root]

    def near(self, pairs: int) -> Tensor:
        """Each cell with itself, and with the nearest of others until these hold `pairs` memories.

        bool `[c, c]`, symmetric.
        """
        if pairs not in self._near:
            order = self.between(root=False).argsort(dim=1, stable=True)
            sizes = self.sizes[order]
            before = sizes.cumsum(dim=1) - sizes
            near = torch.empty_like(before, dtype=torch.bool).scatter_(1, order, before < pairs)
            self._near[pairs] = (near | near.T).fill_diagonal_(True)
        return self._near[pairs]

    def _spread(self) -> Tensor:
        """u^T Σ u of each deviation u from its center, Σ the mean of u u^T over all memories."""
        deviations = (self.points[span] - self.centers[c] for c, span in enumerate(self.spans))
        covariance = sum((part.T @ part for part in deviations), torch.zeros(())) / len(self.points)
        spread = torch.empty(len(self.points), device=self.points.device)
        for cell, span in enumerate(self.spans):
            part = self.points[span] - self.centers[cell]
            spread[span] = ((part @ covariance) * part).sum(dim=1)
        return spread


def costs_between(left: Tensor, right: Tensor, *, root: bool) -> Tensor:
    """|a - b|² of all pairs `[n, k]`, or its square root, by products."""
    squared = torch.addmm(right.square().sum(dim=1), left, right.T, alpha=-2)
    squared.add_(left.square().sum(dim=1, keepdim=True)).clamp_(min=0)
    return squared.sqrt_() if root else squared


def _centers(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """k-means on a sample, from `count` of its points."""
    chosen = torch.randperm(len(points), generator=generator)[: _SAMPLED_PER_CELL * count]
    sample = points[chosen.to(points.device)]
    centers = sample[:count].clone()
    for _ in range(_ROUNDS):
        belongs = _assign(sample, centers)
        sums = torch.zeros_like(centers).index_add_(0, belongs, sample)
        numbers = belongs.bincount(minlength=count)[:, None]
        centers = torch.where(numbers > 0, sums / numbers.clamp(min=1), centers)
    return centers


def _assign(points: Tensor, centers: Tensor) -> Tensor:
    """The nearest center of each point, `[m]`."""
    half = centers.square().sum(dim=1) / 2
    step = max(1, _ASSIGNED_AT_ONCE // len(centers))
    return torch.cat(
        [(half - part @ centers.T).argmin(dim=1) for part in torch.split(points, step)]
    )


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
