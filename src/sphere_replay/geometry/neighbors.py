"""Who is near whom: pairs of memories, found once and kept while features stay.

Each memory's nearest others are searched exactly while that is few comparisons, by faiss beyond. A
pair counts for both its memories, whoever of the two found the other. Where features are the same
as before, pairs are kept; whoever has other features is searched anew, and found by nobody else.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sphere_replay.extras import require
from sphere_replay.geometry.cells import squared_between, squared_lengths
from sphere_replay.geometry.grouping import MOVED, Grouping, prints_of
from sphere_replay.geometry.order import indices_of_smallest
from sphere_replay.geometry.sources import recompute_close
from sphere_replay.geometry.threads import in_order, slices, usable

EXACT_PAIRS = 1 << 30
"""Comparisons up to which a search is exact: those of all among 32,768 memories."""

CLOSE = 1e-3
"""Squared distances below this are computed from differences."""
_ROWS, _COLUMNS = 512, 1 << 14
"""Of a tile of distances."""
_AT_ONCE = 1 << 22
"""Numbers held at a time where pairs are worked on."""

_LISTS_PER_ROOT, _PROBES, _LOOKED_AT = 4, 8, 10
"""Lists of faiss, times the root of m; and how many of them are searched for each memory, at least:
as many as hold so many times those that are wanted."""
_SAMPLED_PER_LIST, _ROUNDS = 40, 4
_ASKED_AT_ONCE = 1 << 15


class Neighbors(NamedTuple):
    """Pairs of near memories, each from both sides, and what tells whether features are the same.

    The pairs of memory i are those from `starts[i]` to `starts[i + 1]`.
    """

    starts: Tensor
    """int64 `[m + 1]`."""
    others: Tensor
    """Who is near, int32 `[p]`."""
    squared: Tensor
    """How far, squared, `[p]`."""
    prints: Tensor
    """Of the points, int64 `[m]`: those of other points are others."""
    looked_for: int
    """How many others each memory looked for."""
    moved: int = 0
    """How many memories have changed, or gone, since all were searched."""

    def on(self, device: torch.device) -> "Neighbors":
        """The same on a device: those that were saved come back on the CPU."""
        starts, others, squared, prints = (each.to(device) for each in self[:4])
        return Neighbors(starts, others, squared, prints, self.looked_for, self.moved)


Kept = Grouping | Neighbors
"""What a geometry leaves to the next one of mostly the same features."""


def kept_of(saved: Mapping[str, Any]) -> Kept:
    """What was saved as `kept._asdict()`."""
    return Neighbors(**saved) if "starts" in saved else Grouping(**saved)


class _Found(NamedTuple):
    """The nearest others of some memories."""

    rows: Tensor
    """Whose, int64 `[n]`, ascending."""
    others: Tensor
    """int32 `[n, k]`; -1 where no more were found."""
    squared: Tensor
    """`[n, k]`."""


def neighbors_of(points: Tensor, count: int, before: Neighbors | None = None) -> Neighbors:
    """The `count` nearest others of each of the points `[m, d]`, as pairs.

    Args:
        points: Unit rows, or zeros.
        count: How many others whoever is searched for looks for.
        before: Pairs of points that some of these may still be, which are kept unless they had
            looked for fewer.
    """
    size, prints = len(points), prints_of(points)
    changed = torch.ones(size, dtype=torch.bool, device=points.device)
    moved = 0
    if before is not None and before.looked_for < count:
        before = None
    if before is not None:
        before = before.on(points.device)
        known = min(size, len(before.prints))
        changed[:known] = prints[:known] != before.prints[:known]
        moved = before.moved + int(changed.sum()) + len(before.prints) - known
        if moved * MOVED > size:
            changed, before, moved = torch.ones_like(changed), None, 0
        elif size == len(before.prints) and not changed.any():
            return before
    found = _nearest(points, changed.nonzero()[:, 0], min(count, size - 1))
    filled = _joined(found, size, before, ~changed)
    return Neighbors(filled.starts, filled.others, filled.squared, prints, count, moved)


def _joined(found: _Found, size: int, before: Neighbors | None, stays: Tensor) -> "_Filling":
    """What was found from both sides, and the pairs of before whose memories both stay."""
    rows, others, squared = found
    there = others >= 0
    back = there & ~_mutual(found, size)
    counts = torch.zeros(size, dtype=torch.int64, device=rows.device)
    counts[rows] = there.sum(dim=1)
    parts = slices(len(rows), _rows_of(others.shape[1]))
    for part in parts:
        counts += others[part][back[part]].bincount(minlength=size)
    for whose, _, _ in _kept(before, stays):
        counts += whose.bincount(minlength=size)
    filling = _Filling(counts)
    for pairs in _kept(before, stays):
        filling.add(*pairs)
    for part in parts:
        some = there[part]
        whose = rows[part].repeat_interleave(some.sum(dim=1))
        filling.add(whose, others[part][some], squared[part][some])
    for part in parts:
        some = back[part]
        finders = rows[part].repeat_interleave(some.sum(dim=1))
        whose, order = others[part][some].long().sort(stable=True)
        filling.add(whose, finders[order].int(), squared[part][some][order])
    return filling


class _Filling:
    """Pairs that are put into their places, some at a time."""

    def __init__(self, counts: Tensor) -> None:
        ends = counts.cumsum(0)
        self.starts = torch.cat([ends.new_zeros(1), ends])
        total = int(ends[-1])
        self.others = torch.empty(total, dtype=torch.int32, device=counts.device)
        self.squared = torch.empty(total, device=counts.device)
        self._next = ends - counts

    def add(self, rows: Tensor, others: Tensor, squared: Tensor) -> None:
        """Pairs of some memories, in ascending order of these."""
        counts = rows.bincount(minlength=len(self._next))
        first = self._next - (counts.cumsum(0) - counts)
        places = first[rows] + torch.arange(len(rows), device=rows.device)
        self.others[places], self.squared[places] = others, squared
        self._next += counts


def _kept(before: Neighbors | None, stays: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Pairs whose memories both stay, some at a time: whose, who, how far."""
    if before is None:
        return
    known = min(len(stays), len(before.prints))
    staying = torch.zeros(len(before.prints), dtype=torch.bool, device=stays.device)
    staying[:known] = stays[:known]
    starts, others, squared, *_ = before
    for part in slices(len(staying), max(1, _AT_ONCE * len(staying) // max(1, len(others)))):
        pairs = slice(int(starts[part.start]), int(starts[part.stop]))
        rows = torch.arange(part.start, part.stop, device=stays.device)
        rows = rows.repeat_interleave(starts[part.start + 1 : part.stop + 1] - starts[part])
        both = staying[rows] & staying[others[pairs]]
        yield rows[both], others[pairs][both], squared[pairs][both]


def _mutual(found: _Found, size: int) -> Tensor:
    """Which of those that were found have found the finder, too, `[n, k]`."""
    rows, others, _ = found
    mutual = torch.zeros(others.shape, dtype=torch.bool, device=rows.device)
    # Each pair is a number, ascending with its finder and then with whom it found, who may be -1.
    pairs = torch.empty(others.shape, dtype=torch.int64, device=rows.device)
    parts = slices(len(rows), _rows_of(others.shape[1]))
    for part in parts:
        pairs[part] = rows[part, None] * (size + 1) + others[part].sort(dim=1).values + 1
    known = pairs.view(-1)

    def look(part: slice) -> None:
        wanted, order = (others[part].long() * (size + 1) + rows[part, None] + 1).flatten().sort()
        places = torch.searchsorted(known, wanted).clamp_(max=len(known) - 1)
        mutual[part].view(-1)[order] = known[places] == wanted

    for _ in in_order(look, parts, rows.device):
        pass
    return mutual


def _rows_of(numbers: int) -> int:
    """How many memories with so many numbers each are worked on at a time."""
    return max(1, _AT_ONCE // max(1, numbers))


def _nearest(points: Tensor, rows: Tensor, count: int) -> _Found:
    """The nearest others of some of the points."""
    if len(rows) * len(points) > EXACT_PAIRS:
        return _by_faiss(points, rows, count)
    return _by_tiles(points, rows, count)


def _by_tiles(points: Tensor, rows: Tensor, count: int) -> _Found:
    lengths, columns = squared_lengths(points), slices(len(points), _COLUMNS)
    others = torch.empty(len(rows), count, dtype=torch.int32, device=points.device)
    squared = torch.empty(len(rows), count, device=points.device)
    for asked in slices(len(rows) if count else 0, _ROWS):
        who = rows[asked]
        left = points[who]

        def nearest(part: slice, who: Tensor = who, left: Tensor = left) -> tuple[Tensor, Tensor]:
            apart = squared_between(left, points[part], lengths[part])
            recompute_close(apart, left, points[part], CLOSE)
            own = ((who >= part.start) & (who < part.stop)).nonzero()[:, 0]
            apart[own, who[own] - part.start] = torch.inf
            found = indices_of_smallest(apart, min(count, apart.shape[1]))
            return apart.gather(1, found), found + part.start

        far, near = map(torch.hstack, zip(*in_order(nearest, columns, points.device), strict=True))
        best = indices_of_smallest(far, count)
        others[asked], squared[asked] = near.gather(1, best).int(), far.gather(1, best)
    return _Found(rows, others, squared)


def _by_faiss(points: Tensor, rows: Tensor, count: int) -> _Found:
    """The same by inverted lists: nearly all of the nearest, in a fraction of the time."""
    size, dim = points.shape
    search = f'a search among {size} memories, as geometry="sparse" makes and "cells" does not,'
    faiss = require("faiss", "large", search)
    lists = int(_LISTS_PER_ROOT * size**0.5)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(usable())
    try:
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dim), dim, lists)
        index.cp.niter, index.cp.max_points_per_centroid = _ROUNDS, _SAMPLED_PER_LIST
        index.nprobe = min(lists, max(_PROBES, -(-_LOOKED_AT * count * lists // size)))
        host = points.cpu().numpy()
        index.train(host)
        index.add(host)
        others = torch.empty(len(rows), count, dtype=torch.int32, device="cpu")
        squared = torch.empty(len(rows), count, device="cpu")
        for part in slices(len(rows), _ASKED_AT_ONCE):
            who = rows[part].cpu()
            far, near = map(torch.from_numpy, index.search(host[who.numpy()], count + 1))
            itself = near == who[:, None]
            itself[:, -1] |= ~itself.any(dim=1)  # whom copies crowd out loses the last instead
            others[part] = near[~itself].view(-1, count).int()
            squared[part] = far[~itself].view(-1, count)
    finally:
        faiss.omp_set_num_threads(threads)
    return _Found(rows, others.to(points.device), squared.to(points.device))
