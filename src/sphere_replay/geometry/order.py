"""Exact order without sorting: the k smallest of each row, and order statistics of a stream."""

from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from sphere_replay.geometry.scratch import working

_NUMPY = find_spec("numpy") is not None
_PARTED_WHOLE = 2048
"""Columns up to which numpy parts a row faster than candidates are found."""

_GROUP = 4
_RADIX_BITS = 16
_BIT_PATTERN = {torch.float32: torch.int32, torch.float64: torch.int64}


def smallest(rows: Tensor, count: int) -> Tensor:
    """The `count` smallest values of each row `[t, n]`, ascending: `[t, count]`."""
    by_numpy = _NUMPY and rows.device.type == "cpu"
    short = by_numpy and rows.shape[1] <= _PARTED_WHOLE
    if not short and (columns := _candidates(rows, count)) is not None:
        rows = rows.gather(1, columns)
    if not by_numpy:
        return rows.topk(count, dim=1, largest=False).values
    # Vectorised, and so several times faster than any selection by torch.
    parted = working("parted rows", rows.shape, rows.dtype, rows.device).copy_(rows)
    parted.numpy().partition(count - 1, axis=1)
    nearest = parted[:, :count].clone()
    nearest.numpy().sort(axis=1)
    return nearest


def place_of_smallest(rows: Tensor) -> Tensor:
    """The column of the smallest value of each row `[t, n]`, the first of several: `[t]`."""
    if _NUMPY and rows.device.type == "cpu":  # vectorised, as above
        return torch.from_numpy(rows.numpy().argmin(axis=1))
    return rows.argmin(dim=1)


def _candidates(rows: Tensor, count: int) -> Tensor | None:
    """A few columns of each row that hold its `count` smallest values; None if it takes them all.

    Columns are put into groups. The `count` smallest values lie in the `count` groups with the
    smallest minima, so only these are looked into: vectorised minima instead of long heaps.
    """
    height, width = rows.shape
    groups = width // _GROUP
    if groups < 4 * count:
        return None
    grouped = rows[:, : groups * _GROUP].view(height, _GROUP, groups)
    nearest = indices_of_smallest(grouped.amin(dim=1), count)
    members = torch.arange(0, groups * _GROUP, groups, device=rows.device)
    leftover = torch.arange(groups * _GROUP, width, device=rows.device).expand(height, -1)
    return torch.cat([(nearest[:, :, None] + members).flatten(1), leftover], dim=1)


def indices_of_smallest(rows: Tensor, count: int) -> Tensor:
    """Columns of the `count` smallest values, in no order."""
    columns = _candidates(rows, count)
    found = rows if columns is None else rows.gather(1, columns)
    best = found.topk(count, dim=1, largest=False, sorted=False).indices
    return best if columns is None else columns.gather(1, best)


def order_statistics(
    chunks: Callable[[], Iterable[Tensor]],
    ranks: Sequence[int],
    dtype: torch.dtype,
    together: Callable[[Tensor], Tensor] = lambda counts: counts,
) -> list[float]:
    """The values of the given ranks (from 0) among non-negative numbers that come in chunks.

    Radix selection on bit patterns, which order non-negative floats as the floats themselves: two
    passes over the chunks in float32, four in float64, and never more than a histogram in memory.
    Where others have chunks too, `together` adds their counts to ours.
    """
    pattern = _BIT_PATTERN[dtype]
    width = torch.iinfo(pattern).bits
    prefixes = [0] * len(ranks)
    remaining = list(ranks)
    for shift in range(width - _RADIX_BITS, -1, -_RADIX_BITS):
        histograms: dict[int, Tensor] = {}
        for chunk in chunks():
            bits = (chunk + 0.0).view(pattern)  # a negative zero is not the smallest, but zero
            digits = (bits >> shift).long()
            for prefix in set(prefixes):
                matching = digits[digits >> _RADIX_BITS == prefix] & ((1 << _RADIX_BITS) - 1)
                counts = matching.bincount(minlength=1 << _RADIX_BITS)
                histograms[prefix] = histograms[prefix] + counts if prefix in histograms else counts
        totals = {prefix: together(histograms[prefix]) for prefix in sorted(histograms)}
        for index, prefix in enumerate(prefixes):
            cumulative = totals[prefix].cumsum(0)
            digit = int(torch.searchsorted(cumulative, remaining[index], right=True))
            if digit > 0:
                remaining[index] -= int(cumulative[digit - 1])
            prefixes[index] = prefix << _RADIX_BITS | digit
    return [float(torch.tensor(prefix, dtype=pattern).view(dtype)) for prefix in prefixes]
