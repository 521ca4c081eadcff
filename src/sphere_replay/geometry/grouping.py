"""Which memories lie together: groups of near points, found once and kept while rows stay.

Groups come from a few rounds of k-means on a sample, and of another k-means within each group where
there are many; those that grow too large are cut along their longest direction, so that a dense
cluster, or a thousand copies of one point, costs no more than anything else.

Where most features are still those of an earlier grouping, as those of a frozen encoder are, these
memories stay together. Others come to whom they are nearest to, or form groups of their own. What
is computed of groups is computed anew: it depends on who lies together, not on how that was found.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sphere_replay.geometry.order import place_of_smallest
from sphere_replay.geometry.threads import in_order

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
_AT_ONCE, _PRINTED_AT_ONCE = 1 << 22, 1 << 20
"""Distances to centers held at a time, and numbers of features that prints are made of."""
_SPLIT_AT_ONCE, _SPLIT_WITH_OTHERS = 1 << 20, 1 << 13
"""Numbers of members whose groups are split at once, and members of a group that is split alone."""
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int32}
"""Whole numbers that those of features consist of. Not of 64 bits: their products would lose the
upper ones, and with an even number of signs nothing would change."""
_STRANGE, _STRANGE_CELLS = 2.0, 4
"""Times the mean squared distance to a center, from which on nobody comes to a cell; and how much
smaller the cells are of those who do not: they may be of many kinds."""
MOVED, _GROWN = 4, 1.25
"""Cells are found anew once one memory of so many has come to a cell that was there before, or once
cells of strangers would make so many times the most: pairs of cells take memory."""


class Grouping(NamedTuple):
    """Which cell each memory lies in, and what tells whether its features are still the same."""

    cells: Tensor
    """Number of the cell of each memory, int32 `[m]`."""
    prints: Tensor
    """Of the feature rows, int64 `[m]`: those of other rows are others."""
    moved: int = 0
    """How many memories came to their cells after these were found."""

    def members(self) -> list[Tensor]:
        """Which memories lie in each cell."""
        return list(_members(self.cells, int(self.cells.max()) + 1))


def grouped(
    features: Tensor, points: Tensor, generator: torch.Generator, before: Grouping | None = None
) -> Grouping:
    """Groups of near points `[m, d]`, which are those of `before` as far as features are the same.

    Args:
        features: What the points were made of, `[m, d]`.
        points: To be grouped.
        generator: Chooses the sample that centers are found by.
        before: A grouping of features that some of these may still be.
    """
    size, prints = len(points), prints_of(features)
    count = max(1, min(MOST_CELLS, size // LEAST_MEMBERS))
    most = OVERSIZE * max(1, size // count)
    groups, moved = None, 0
    if before is not None:
        stays = torch.zeros(size, dtype=torch.bool, device=points.device)
        known = min(size, len(before.prints))
        stays[:known] = prints[:known] == before.prints[:known].to(prints.device)
        moved = before.moved + size - int(stays.sum())
        if moved * MOVED <= size:
            groups = _kept(points, stays, before.cells.to(points.device), generator)
    if groups is None:
        groups, moved = _found(points, count, generator), 0
    parts = [part for group in groups for part in _cut(group, points, most)]
    cells = torch.empty(size, dtype=torch.int32, device=points.device)
    for cell, part in enumerate(parts):
        cells[part] = cell
    return Grouping(cells, prints, moved)


def prints_of(features: Tensor) -> Tensor:
    """A number of each row's bits `[m]`."""
    bits = _BITS[features.itemsize]
    dim = features.shape[1] * features.itemsize // bits.itemsize
    seeded = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(1 << 62), 1 << 62, (dim,), generator=seeded, device="cpu")
    factors = (2 * drawn + 1).to(features.device)
    parts = torch.split(features, max(1, _PRINTED_AT_ONCE // dim))

    def printed(part: Tensor) -> Tensor:
        return (part.contiguous().view(bits) * factors).sum(dim=1)

    return torch.cat(list(in_order(printed, parts, features.device)))


def _kept(
    points: Tensor, stays: Tensor, cells: Tensor, generator: torch.Generator
) -> list[Tensor] | None:
    """Groups of those who stay where they were; others come to the nearest, or form their own.

    None if that would make more groups than there may be.
    """
    staying, others = stays.nonzero()[:, 0], (~stays).nonzero()[:, 0]
    belongs = cells[staying]
    groups = [staying[group] for group in _members(belongs, int(belongs.max()) + 1) if len(group)]
    if len(others) == 0:
        return groups
    centers = torch.stack([points[group].mean(dim=0) for group in groups])
    within = torch.stack(
        [(points[g] - c).square_().sum() for g, c in zip(groups, centers, strict=True)]
    )
    nearest = _assign(points[others], centers)
    apart = (points[others] - centers[nearest]).square_().sum(dim=1)
    strange = apart > _STRANGE * within.sum() / len(staying)
    added = _members(nearest[~strange], len(groups))
    joined = others[~strange]
    groups = [torch.cat([group, joined[new]]) for group, new in zip(groups, added, strict=True)]
    if strangers := int(strange.sum()):
        alone = others[strange]
        members = max(LEAST_MEMBERS, len(points) // MOST_CELLS)
        count = -(-strangers * _STRANGE_CELLS // members)
        if len(groups) + count > _GROWN * MOST_CELLS:
            return None
        groups += [alone[group] for group in _found(points[alone], count, generator)]
    return groups


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
    whole = _around_centers(points, groups, generator)
    if count == groups:
        return whole
    members, found = len(points) / count, []
    for group in whole:
        if len(group) > _SPLIT_WITH_OTHERS:
            parts = _around_centers(points[group], round(len(group) / members), generator)
            found += [group[part] for part in parts]
    others = sorted((group for group in whole if 0 < len(group) <= _SPLIT_WITH_OTHERS), key=len)
    split = partial(_split, points=points, members=members)
    batches = list(_batches(others, max(1, _SPLIT_AT_ONCE // points.shape[1])))
    for parts in in_order(split, batches, points.device):
        found += parts
    return found


def _around_centers(points: Tensor, count: int, generator: torch.Generator) -> list[Tensor]:
    """Who is nearest to each of `count` centers."""
    return list(_members(_assign(points, _centers(points, count, generator)), count))


def _batches(groups: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Groups of rising sizes, some at a time, whose members would be `most` if all were as many."""
    batch: list[Tensor] = []
    for group in groups:
        if batch and len(group) * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


def _split(groups: Sequence[Tensor], points: Tensor, members: float) -> list[Tensor]:
    """Parts of about so many members, by k-means within each of some groups of similar sizes."""
    sizes = torch.tensor([len(group) for group in groups], device=points.device)
    parts = (sizes / members).round().clamp_(min=1).long()
    most, device = int(parts.max()), points.device
    who = pad_sequence(list(groups), batch_first=True)
    present = torch.arange(who.shape[1], device=device) < sizes[:, None]
    inside = points[who].mul_(present[:, :, None])
    # Evenly spaced members to begin with; a part too much is nowhere.
    numbers = torch.arange(most, device=device)
    seeds = (numbers * sizes[:, None] // parts[:, None]).clamp_(max=who.shape[1] - 1)
    centers = inside.take_along_dim(seeds[:, :, None], dim=1)
    nowhere = torch.where(numbers < parts[:, None], 0.0, torch.inf)

    def belongs() -> Tensor:
        half = centers.square().sum(dim=2) / 2 + nowhere
        nearest = torch.baddbmm(half[:, None], inside, centers.mT, alpha=-1).argmin(dim=2)
        return nearest.masked_fill_(~present, most)

    for _ in range(_ROUNDS):
        joined = (belongs()[:, :, None] == numbers).to(points.dtype)
        counts = joined.sum(dim=1)[:, :, None]
        centers = torch.where(counts > 0, joined.mT @ inside / counts.clamp(min=1), centers)
    offsets = torch.arange(len(groups), device=device)[:, None] * (most + 1)
    by_part = _members((belongs() + offsets).flatten(), len(groups) * (most + 1))
    everybody = who.flatten()
    found = [everybody[part] for place, part in enumerate(by_part) if (place + 1) % (most + 1)]
    return [part for part in found if len(part)]


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
        result[part] = place_of_smallest(torch.addmm(half, points[part], centers.T, alpha=-1))

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
