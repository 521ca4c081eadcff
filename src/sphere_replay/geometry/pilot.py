"""How a large geometry applies the kernel of one scale: decided and leveled by a few exact rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.geometry.calibration import effective_sizes
from sphere_replay.geometry.far import LEAST_EXPONENT, Far
from sphere_replay.geometry.kernels import kernel_of
from sphere_replay.numeric import accumulation_dtype, median

PILOTS = 64
"""Rows to decide by."""

_NEGLIGIBLE = 1e-5
"""A share of the kernel's mass that may be left out."""
_ACCURATE = 2e-4
"""Mean relative error of row sums at which moments alone will do."""
_TYPICAL, _STEEPEST, _TINY = 1e-4, 0.5, 1e-30
"""A variance of spreads below which there is no slope over them, and the steepest there may be."""


@dataclass(frozen=True)
class Plan:
    """How the kernel of one scale is applied, and why so."""

    near: Tensor
    """Which pairs of cells are exact, bool `[c, c]`."""
    far: Far | None
    """What carries all others; None leaves them out."""
    why: str


class Rows(NamedTuple):
    """Some memories against all."""

    places: Tensor
    """`[n]`."""
    costs: Tensor
    """C_ij, exactly, `[n, m]` by place."""


class Fit(NamedTuple):
    """What moments come to for the pairs that are not near."""

    level: float
    """To multiply them by, so that they are right on average."""
    tilt: float
    """How much more they should follow the spread of slopes, whose higher orders are left out."""
    error: float
    """Mean relative error of the row sums of the whole kernel."""


def planned(
    pilots: Iterator[Rows],
    eps: float,
    cell_of: Tensor,
    nears: Sequence[Tensor],
    far: Callable[[Tensor], Far],
) -> Plan:
    """The cheapest way that is accurate on the pilot rows.

    Args:
        pilots: Exact rows, in parts.
        eps: Kernel scale in units of the costs.
        cell_of: Cell of each place, `[m]`.
        nears: Which pairs of cells could be exact, the most first, the least last.
        far: Carries the pairs that are not near.
    """
    places, sizes, by_cell = _sums(pilots, eps, cell_of, len(nears[0]))
    measured = f"N_eff {median(sizes):.0f} of {len(cell_of)}"
    total = by_cell.sum(dim=1)
    shares = [(by_cell * ~near[cell_of[places]]).sum(dim=1) / total for near in nears]
    if float(shares[0].mean()) < _NEGLIGIBLE:
        return Plan(nears[0], None, f"sparse: {measured}, near cells hold all of it")
    if len(nears) > 1:
        lean = far(nears[-1])
        fit = _fit(*lean.sums_of_few(places), shares[-1], total)
        if fit.error < _ACCURATE:
            off = f"{fit.error:.1e} off the sums"
            why = f"low rank: {measured}, moments are {off}"
            return Plan(nears[-1], lean.fitted(fit.level, fit.tilt), why)
    wide = far(nears[0])
    fit = _fit(*wide.sums(places), shares[0], total)
    part = f"{100 * float(shares[0].mean()):.2g}% by moments, {fit.error:.1e} off the sums"
    why = f"mixed: {measured}, near cells exactly and {part}"
    return Plan(nears[0], wide.fitted(fit.level, fit.tilt), why)


def _fit(found: Tensor, spread: Tensor, share: Tensor, total: Tensor) -> Fit:
    found, spread = found.to(total.dtype) / total, spread.to(total.dtype)
    tilt = _tilt(found, spread, share)
    found = found * (tilt * spread).exp()
    given = float(found.sum())
    level = float(share.sum()) / given if given > 0 else 1.0
    return Fit(level, tilt, float((level * found - share).abs().mean()))


def _tilt(found: Tensor, spread: Tensor, share: Tensor) -> float:
    """The slope of log(share / found) over the spread, by least squares of absolute errors."""
    off = (share.clamp(min=_TINY) / found.clamp(min=_TINY)).log()
    weight = share.square() / share.square().sum().clamp(min=_TINY)
    spread = spread - weight @ spread
    slope = (weight * spread) @ off / (weight @ spread.square() + _TYPICAL)
    return float(slope.clamp(-_STEEPEST, _STEEPEST))


def _sums(
    pilots: Iterator[Rows], eps: float, cell_of: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Places and N_eff of the pilots `[n]`, and their kernel summed over each cell `[n, c]`."""
    parts = []
    for rows in pilots:
        size = effective_sizes(rows.costs, eps)
        kernel = kernel_of(rows.costs, eps, least=LEAST_EXPONENT, out=rows.costs)
        precise = accumulation_dtype(kernel.device)
        sums = torch.zeros(len(kernel), count, dtype=precise, device=kernel.device)
        sums.scatter_add_(1, cell_of.expand_as(kernel), kernel.to(precise))
        parts.append((rows.places, size, sums))
    places, sizes, by_cell = (torch.cat(each) for each in zip(*parts, strict=True))
    return places, sizes, by_cell
