"""A geometry whose memories lie on several ranks: features travel in a ring, vectors are shared.

A rank holds the features of its own memories. In a pass over all pairs, blocks of features go from
rank to rank; each pair of ranks is looked at on one of them, for both, so a block makes half the
round. Vectors `[m]` are only m numbers long: every rank has them whole, and so the algorithm above
runs on every rank alike.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sphere_replay.geometry.calibration import Scale, faded, scales_by_sizes
from sphere_replay.geometry.distances import Distance, SquaredEuclidean
from sphere_replay.geometry.embeddings import UnitRows
from sphere_replay.geometry.order import smallest
from sphere_replay.geometry.ring import Ring
from sphere_replay.geometry.sources import PointSource, fast_squared, sharp_squared
from sphere_replay.geometry.threads import in_order
from sphere_replay.geometry.tiles import TileGeometry
from sphere_replay.geometry.tiling import FEW
from sphere_replay.numeric import spread
from sphere_replay.validation import spelled

Result = TypeVar("Result")
Points = Callable[[slice], Tensor]
"""Some points of one rank, in the precision that distances are made in."""


class ShardedGeometry(TileGeometry):
    """Exact kernel products over the memories of all ranks, numbered in the order of the ranks.

    Its methods are collective: all ranks call them, with the same arguments, and get the same.

    Args:
        features: h `[m_r, d]` of this rank's memories, at least one; d and precision are common.
        distance: The squared Euclidean one unless given; any between points.
        group: The ranks; None for all there are.
    """

    def __init__(
        self,
        features: Tensor,
        distance: Distance | None = None,
        *,
        group: "dist.ProcessGroup | None" = None,
    ) -> None:
        distance = distance or SquaredEuclidean()
        device = features.device if isinstance(features, Tensor) else torch.device("cpu")
        self.ring = Ring(device, group)
        source, problem = _points_of(features, distance)
        self.ring.agree(problem)
        assert source is not None
        self.ring.alike("distances", spelled(distance))
        self.counts = _counts(self.ring, source.points.features)
        """How many memories each rank has."""
        self._firsts = [0, *accumulate(self.counts)]
        one_each = [1] * self.ring.ranks
        centers = self.ring.rows(source.points.rough_center()[None], one_each)
        self._origin = centers.mean(dim=0)
        source = source.seen_from(self._origin)
        super().__init__(source, keep_bytes=0)
        self._here = source
        finest = torch.tensor([source.finest_eps], dtype=torch.float64)
        self._finest_eps = float(self.ring.rows(finest.to(self._vector_dtype), one_each).max())
        self.why = f"sharded: {self.size} memories on {self.ring.ranks} ranks"
        self.unit = distance.unit(self)

    @property
    def size(self) -> int:
        """Number of memories m on all ranks."""
        return self._firsts[-1]

    @property
    def own(self) -> slice:
        """Which of them are this rank's."""
        return self._range(self.ring.rank)

    def gather(self, values: Tensor) -> Tensor:
        """Values `[m]` of all memories from those `[m_r]` of each rank."""
        return self.ring.rows(values, self.counts)

    def _over_tiles(
        self, work: Callable[[slice, slice, Tensor], Result]
    ) -> Iterator[tuple[slice, slice, Result]]:
        """`work` on those tiles that are this rank's to look at, in the order they arrive."""
        for whose, distances in self._visits(self.ring.ranks // 2):
            for index, rows in enumerate(self._tiles(self.ring.rank)):
                columns = self._columns(index, whose)

                def on_tile(
                    cols: slice,
                    rows: slice = rows,
                    distances: Callable[[slice, slice], Tensor] = distances,
                ) -> Result:
                    return work(rows, cols, distances(rows, cols))

                done = in_order(on_tile, columns, self.device, even_one=True)
                for cols, result in zip(columns, done, strict=True):
                    yield rows, cols, result

    def _columns(self, index: int, whose: int) -> list[slice]:
        """Which of a rank's tiles this one looks at, for that row of its own tiles."""
        columns = self._tiles(whose)
        rank, ranks = self.ring.rank, self.ring.ranks
        if whose == rank:
            return columns[index:]
        if 2 * abs(rank - whose) == ranks:
            # Opposite ranks get each other's block: they share the tiles like a chessboard.
            return columns[(index + (rank > whose)) % 2 :: 2]
        return columns

    def _visits(self, steps: int) -> Iterator[tuple[int, Callable[[slice, slice], Tensor]]]:
        """This rank and the `steps` before it: who, and the distances of our rows to its own."""
        ours = self._points(self.ring.rank, self._travelling)
        for whose, block in self.ring.blocks(self._travelling, self.counts, steps):
            theirs = ours if whose == self.ring.rank else self._points(whose, block)

            def distances(rows: slice, cols: slice, theirs: Points = theirs) -> Tensor:
                return self._distances(ours(rows), theirs(cols), same=rows == cols)

            yield whose, distances

    @property
    def _sharp(self) -> bool:
        return self._here.fast is None

    @property
    def _travelling(self) -> Tensor:
        fast = self._here.fast
        return self._here.points.features if fast is None else fast

    def _points(self, whose: int, block: Tensor) -> Points:
        """What a rank's block holds, by numbers of all memories."""
        first = self._firsts[whose]
        if not self._sharp:
            return lambda rows: block[rows.start - first : rows.stop - first]
        ours = whose == self.ring.rank
        units = self._here.points if ours else UnitRows(block)
        return lambda rows: units.rows(slice(rows.start - first, rows.stop - first))

    def _distances(self, left: Tensor, right: Tensor, *, same: bool = False) -> Tensor:
        squared = (
            sharp_squared(left, right, self.dtype, same=same)
            if self._sharp
            else fast_squared(left, right)
        )
        distances = squared.sqrt_() if self._here.root else squared
        if same:
            distances.fill_diagonal_(0)
        return distances.to(self.dtype)

    def _search(self, columns: Sequence[int]) -> Tensor:
        """Raw distances to the given neighbours: here a block goes all the way round."""
        wanted = max(columns) + 1
        own = self.own
        nearest = torch.empty(own.stop - own.start, 0, dtype=self.dtype, device=self.device)
        for whose, distances in self._visits(self.ring.ranks - 1):
            for cols in self._tiles(whose):

                def panel(
                    rows: slice,
                    cols: slice = cols,
                    distances: Callable[[slice, slice], Tensor] = distances,
                    nearest: Tensor = nearest,
                ) -> Tensor:
                    before = nearest[rows.start - own.start : rows.stop - own.start]
                    return _smallest_of([before, distances(rows, cols)], wanted)

                tiles = self._tiles(self.ring.rank)
                nearest = torch.cat(list(in_order(panel, tiles, self.device, even_one=True)))
        return self.gather(nearest[:, columns].to(self._vector_dtype)).T

    def _radius_of_few(self, neighbor: int) -> float:
        few = self._sampled_rows(FEW)
        ours = _smallest_of([few], neighbor + 1)
        widths = [min(count, neighbor + 1) for count in self.counts]
        found = self.ring.rows(ours.T, widths).T
        return float(_smallest_of([found], neighbor + 1)[:, -1].median())

    def _sampled_rows(self, count: int) -> Tensor:
        """Raw distances of about `count` memories of all to those of this rank."""
        rows = spread(self.size, count)
        chosen = [
            rows[(rows >= first) & (rows < last)] - first for first, last in pairwise(self._firsts)
        ]
        ours = chosen[self.ring.rank].to(self.device)
        sample = self.ring.rows(self._here.points.chosen(ours), [len(rows) for rows in chosen])
        if not self._sharp:
            sample = (sample - self._origin).to(self.dtype)
        points = self._points(self.ring.rank, self._travelling)

        def panel(cols: slice) -> Tensor:
            return self._distances(sample, points(cols))

        tiles = self._tiles(self.ring.rank)
        found = torch.cat(list(in_order(panel, tiles, self.device, even_one=True)), dim=1)
        places = sum(len(rows) for rows in chosen[: self.ring.rank])
        found[places + torch.arange(len(ours), device=self.device), ours] = 0
        return found

    def _scales(
        self, rows: Tensor, neighbors: Sequence[float], guesses: Sequence[Scale] = ()
    ) -> list[Scale]:
        def over_ranks(values: Tensor) -> Tensor:
            return self.ring.rows(values[None], [1] * self.ring.ranks)

        def sizes(eps: float) -> Tensor:
            kernel = faded(rows, eps)
            sums = torch.stack([kernel.sum(1), kernel.square().sum(1)]).to(self._vector_dtype)
            mass, squares = over_ranks(sums).sum(dim=0)
            effective: Tensor = mass.square() / squares
            return effective

        largest = float(over_ranks(rows.max()).max())
        return scales_by_sizes(sizes, largest, self.size, neighbors, guesses)

    def _together(self, sums: Tensor) -> Tensor:
        return self.ring.total(sums.T, self.counts).T

    def _log_together(self, log_sums: Tensor) -> Tensor:
        # Every memory is its own neighbour on some rank: the largest of its logarithms is finite.
        top = self._largest_together(log_sums)
        return top + self.ring.total((log_sums - top).exp(), self.counts).log()

    def _largest_together(self, values: Tensor) -> Tensor:
        return self.ring.reduced(values, dist.ReduceOp.MAX)

    def _counts_together(self, counts: Tensor) -> Tensor:
        return self.ring.reduced(counts, dist.ReduceOp.SUM)

    def _sharpen(self, eps: float) -> bool:
        """As one process would, but for anchors: all ranks leave the fast way together."""
        if self._sharp or eps * self.unit >= self._finest_eps:
            return False
        self._here.sharpen_all()
        return True

    def _fill(self) -> None:
        """No tiles are kept."""

    def _range(self, rank: int) -> slice:
        return slice(self._firsts[rank], self._firsts[rank + 1])

    def _tiles(self, rank: int) -> list[slice]:
        own = self._range(rank)
        starts = range(own.start, own.stop, self._tile)
        return [slice(start, min(start + self._tile, own.stop)) for start in starts]


def _points_of(features: Tensor, distance: Distance) -> tuple[PointSource | None, str | None]:
    """The points of this rank, or what is wrong with them."""
    if not isinstance(features, Tensor):
        return None, f"features must be a torch.Tensor, got {type(features).__name__}"
    if features.ndim == 2 and len(features) == 0:
        return None, "it has no memories; leave it out of the group, or give it some"
    try:
        source = distance.source(features)
    except ValueError as error:
        return None, str(error)
    if not isinstance(source, PointSource):
        return None, f"{distance} has no points that could travel; use a distance of features"
    if source.points.centered:
        return None, f"{distance} centres by the mean of one rank; centre features over all first"
    return source, None


def _counts(ring: Ring, features: Tensor) -> list[int]:
    """Rows of each rank, after a look at whether all have the same dimension and precision."""
    ring.alike("features", f"[m, {features.shape[1]}] of {features.dtype}")
    counts: list[int] = ring.rows(torch.tensor([len(features)]), [1] * ring.ranks).tolist()
    return counts


def _smallest_of(parts: Sequence[Tensor], count: int) -> Tensor:
    """The `count` smallest values of each row of all parts, or all if there are fewer."""
    rows = torch.cat(list(parts), dim=1)
    return smallest(rows, min(count, rows.shape[1]))
