"""How a large geometry applies the kernel of one scale: decided and leveled by a few exact rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.geometry.far import LEAST_EXPONENT, Far
from sphere_replay.geometry.kernels import kernel_of
from sphere_replay.geometry.threads import in_order, slices
from sphere_replay.numeric import accumulation_dtype, median

PILOTS = 64
"""Rows to decide by."""

_PLACES_AT_ONCE = 1 << 13
"""Memories whose costs to the pilots are held."""
_NEGLIGIBLE = 3e-5
"""A share of the kernel's mass that may be left out."""
_NEARLY = 1e-3
"""A share that more near pairs may make negligible; they take less time than moments."""
_ACCURATE = 2e-4
"""Mean relative error of row sums at which moments alone will do."""
_TOLERABLE = 1.5e-3
"""The same where moments carry what near pairs leave; beyond it, more pairs are tried. A bound on
the total variation is several times as large."""
_WORTH_IT = 0.75
"""Of the error of moments: what more pairs, which take longer, must bring it down to."""
_TYPICAL, _STEEPEST, _TINY = 1e-4, 0.5, 1e-30
"""A variance of spreads below which there is no slope over them, and the steepest there may be."""


@dataclass(frozen=True)
class Plan:
    """How the kernel of one scale is applied, and why so."""

    near: Tensor
    """Which pairs of cells are exact, bool `[c, c]`."""
    far: Far | None
    """What carries all others; None leaves them out."""
    share: float
    """Of the kernel's mass that others have, on average."""
    why: str


class Pilots(NamedTuple):
    """Some memories, and what all others cost them."""

    places: Tensor
    """`[n]`."""
    costs: Callable[[slice], Tensor]
    """C_ij, exactly, of some adjacent places j."""


class Fit(NamedTuple):
    """What moments come to for the pairs that are not near."""

    level: float
    """To multiply them by, so that they are right on average."""
    tilt: float
    """How much more they should follow the spread of slopes, whose higher orders are left out."""
    error: float
    """Mean relative error of the row sums of the whole kernel."""


def planned(
    pilots: Pilots,
    eps: float,
    cell_of: Tensor,
    nears: Sequence[Tensor],
    far: Callable[[Tensor], Far],
    wider: Sequence[Callable[[], Tensor]] = (),
) -> Plan:
    """The cheapest way that is accurate on the pilot rows.

    Args:
        pilots: Exact rows.
        eps: Kernel scale in units of the costs.
        cell_of: Cell of each place, `[m]`.
        nears: Which pairs of cells could be exact, the most first, the least last.
        far: Carries the pairs that are not near.
        wider: More and more pairs that could be exact, for kernels that these nearly hold, or that
            moments do not carry; without any, moments are taken as they are.
    """
    places = pilots.places
    by_cell, squares = _sums(pilots, eps, cell_of, len(nears[0]))
    total = by_cell.sum(dim=1)
    measured = f"N_eff {median(total.square() / squares):.0f} of {len(cell_of)}"

    def beyond(near: Tensor) -> Tensor:
        """The share of each pilot's kernel that is not near."""
        return (by_cell * ~near[cell_of[places]]).sum(dim=1) / total

    def all_of_it(near: Tensor) -> Plan:
        why = f"sparse: {measured}, near cells and the next hold all of it"
        return Plan(near, None, float(beyond(near).mean()), why)

    shares = [beyond(near) for near in nears]
    least = float(shares[0].mean())
    if least < _NEGLIGIBLE:
        return Plan(nears[0], None, least, f"sparse: {measured}, near cells hold all of it")
    if wider and least < _NEARLY and float(beyond(more := wider[0]()).mean()) < _NEGLIGIBLE:
        return all_of_it(more)
    if len(nears) > 1:
        lean = far(nears[-1])
        fit = _fit(*lean.sums(places), shares[-1], total)
        if fit.error < _ACCURATE:
            off = f"{fit.error:.1e} off the sums"
            why = f"low rank: {measured}, moments are {off}"
            most = float(shares[-1].mean())
            return Plan(nears[-1], lean.fitted(fit.level, fit.tilt), most, why)
    mixed = _mixed(pilots, nears[0], far, shares[0], total, measured)
    if mixed.error < min(least, _TOLERABLE) or (not wider and math.isfinite(mixed.error)):
        return mixed.plan
    more, left = nears[0], shares[0]
    for widen in wider:
        more = widen()
        left = beyond(more)
        if float(left.mean()) < _NEGLIGIBLE:
            return all_of_it(more)
    without = float(left.mean())
    if without > _TOLERABLE and wider:
        again = _mixed(pilots, more, far, left, total, measured)
        worth_it = again.error < _WORTH_IT * mixed.error or not math.isfinite(mixed.error)
        best = again if worth_it else mixed
        if best.error < without:
            return best.plan
    off = f"moments would be {mixed.error:.1e} off the sums"
    return Plan(more, None, without, f"sparse: {measured}, {100 * without:.2g}% is left out, {off}")


class _Mixed(NamedTuple):
    plan: Plan
    error: float


def _mixed(
    pilots: Pilots,
    near: Tensor,
    far: Callable[[Tensor], Far],
    share: Tensor,
    total: Tensor,
    measured: str,
) -> _Mixed:
    """Near pairs exactly, and moments for the share of each pilot's kernel that is not near."""
    wide, most = far(near), float(share.mean())
    fit = _fit(*wide.sums(pilots.places), share, total)
    part = f"{100 * most:.2g}% by moments, {fit.error:.1e} off the sums"
    why = f"mixed: {measured}, near cells exactly and {part}"
    return _Mixed(Plan(near, wide.fitted(fit.level, fit.tilt), most, why), fit.error)


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


def _sums(pilots: Pilots, eps: float, cell_of: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The pilots' kernel summed over each cell `[n, c]`, and its squares over all `[n]`."""
    precise, device = accumulation_dtype(cell_of.device), cell_of.device

    def of_part(part: slice) -> tuple[slice, Tensor, Tensor]:
        kernel = kernel_of(pilots.costs(part), eps, least=LEAST_EXPONENT).to(precise)
        own_cell = cell_of[part]
        cells = slice(int(own_cell[0]), int(own_cell[-1]) + 1)
        sums = kernel.new_zeros(len(kernel), cells.stop - cells.start)
        sums.scatter_add_(1, (own_cell - cells.start).expand_as(kernel), kernel)
        return cells, sums, kernel.square_().sum(dim=1)

    by_cell = torch.zeros(len(pilots.places), count, dtype=precise, device=device)
    squares = by_cell.new_zeros(len(by_cell))
    for cells, sums, part in in_order(of_part, slices(len(cell_of), _PLACES_AT_ONCE), device):
        by_cell[:, cells] += sums
        squares += part
    return by_cell, squares
