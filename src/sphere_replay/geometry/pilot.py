"""How a large geometry applies the kernel of one scale: decided and fitted by a few exact rows."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.geometry.calibration import effective_sizes
from sphere_replay.numeric import accumulation_dtype, median

PILOTS = 64
"""Rows to decide by."""

_NEGLIGIBLE = 1e-5
"""A share of the kernel's mass that may be left out."""
_ACCURATE = 2e-4
"""Mean relative error of row sums at which landmarks alone will do."""
LEAST_EXPONENT, LARGEST_EXPONENT = -87.0, 80.0
"""exp() of less is no normal number; more belongs to pairs that are out of reach."""
_LARGEST_GAIN = 2.0
"""Of log g: more is no correction any longer."""


@dataclass(frozen=True)
class Plan:
    """How the kernel of one scale is applied, and why so."""

    near: Tensor
    """Which pairs of cells are exact, bool `[c, c]`."""
    gains: Tensor | None
    """g_i of the landmarks' share, `[m]` by place; None leaves it out."""
    why: str


class Rows(NamedTuple):
    """Some memories against all, `[n, m]` by place."""

    places: Tensor
    own: Tensor
    """Cell of each of them."""
    cell_of: Tensor
    """Cell of every place."""
    costs: Tensor
    """C_ij, exactly."""
    by_landmarks: Tensor
    """C(i, b) + C(a, j) - C(a, b)."""


class Fit(NamedTuple):
    """What landmarks come to for the pairs that are not near."""

    share: float
    """Of the kernel's mass, on average over memories."""
    error: float
    """Mean relative error of the row sums of the whole kernel."""
    gains: Tensor


Pilots = Callable[[int], Iterator[Rows]]


def planned(pilots: Pilots, eps: float, nears: Sequence[Tensor], spread: Tensor) -> Plan:
    """The cheapest way that is accurate on the pilot rows.

    Args:
        pilots: Yields that many rows in parts.
        eps: Kernel scale in units of the costs.
        nears: Which pairs of cells could be exact, the most first, the least last.
        spread: How far each place lies from its center, `[m]`; landmarks err by a function of it.
    """
    size, fits = _fits(pilots, eps, nears, spread)
    (near, widest), (least, leanest) = (nears[0], fits[0]), (nears[-1], fits[-1])
    measured = f"N_eff {size:.0f} of {len(spread)}"
    if widest.share < _NEGLIGIBLE:
        return Plan(near, None, f"sparse: {measured}, near cells hold all of it")
    if leanest.error < _ACCURATE:
        off = f"{leanest.error:.1e} off the sums"
        return Plan(least, leanest.gains, f"low rank: {measured}, landmarks are {off}")
    part = f"{100 * widest.share:.2g}% by landmarks, {widest.error:.1e} off the sums"
    return Plan(near, widest.gains, f"mixed: {measured}, near cells exactly and {part}")


def _fits(
    pilots: Pilots, eps: float, nears: Sequence[Tensor], spread: Tensor
) -> tuple[float, list[Fit]]:
    """Median N_eff, and the fitted landmarks for each choice of near cells."""
    gains = [torch.ones_like(spread) for _ in nears]
    sizes, places, total, exact, found = _sums(pilots, eps, nears, gains)
    slopes = [
        _slope(spread[places], one, rough, total) for one, rough in zip(exact, found, strict=True)
    ]
    gains = [
        (slope * (spread - spread.mean())).clamp_(max=_LARGEST_GAIN).exp_() for slope in slopes
    ]
    *_, found = _sums(pilots, eps, nears, gains)
    fits = []
    for gain, one, rough in zip(gains, exact, found, strict=True):
        wanted, given = (one / total).sum(), (rough / total).sum()
        level = float(wanted / given) if given > 0 and wanted > 0 else 1.0
        error = float(((level * rough - one) / total).abs().mean())
        fits.append(Fit(float((one / total).mean()), error, gain * math.sqrt(level)))
    return median(sizes), fits


def _sums(
    pilots: Pilots, eps: float, nears: Sequence[Tensor], gains: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """N_eff, places and mass of the pilots; the far mass, exactly and by landmarks, per choice."""
    parts = []
    for rows in pilots(PILOTS):
        precise = accumulation_dtype(rows.costs.device)
        size = effective_sizes(rows.costs, eps)
        kernel = rows.costs.mul_(-1 / eps).clamp_(min=LEAST_EXPONENT).exp_()
        exponents = rows.by_landmarks.mul_(-1 / eps).clamp_(LEAST_EXPONENT, LARGEST_EXPONENT)
        rough = exponents.exp_()
        exact, found = [], []
        for near, gain in zip(nears, gains, strict=True):
            far = ~near[rows.own][:, rows.cell_of]
            exact.append((kernel * far).sum(dim=1, dtype=precise))
            far_gain = gain[rows.places, None] * gain
            found.append((rough * far_gain * far).sum(dim=1, dtype=precise))
        mass = kernel.sum(dim=1, dtype=precise)
        parts.append((size, rows.places, mass, torch.stack(exact), torch.stack(found)))
    sizes, places, total, *sums = (list(each) for each in zip(*parts, strict=True))
    exact_sums, found_sums = (torch.cat(each, dim=1) for each in sums)
    return torch.cat(sizes), torch.cat(places), torch.cat(total), exact_sums, found_sums


def _slope(spread: Tensor, exact: Tensor, found: Tensor, total: Tensor) -> float:
    """Of log(exact / found) along the spread; rows count by their far share."""
    seen = (exact > 0) & (found > 0)
    if not seen.any():
        return 0.0
    weight = (exact / total).square()[seen]
    ratio, spread = (exact / found).log()[seen], spread.to(exact.dtype)[seen]
    spread = spread - (weight * spread).sum() / weight.sum()
    variance = float((weight * spread.square()).sum())
    return float((weight * spread * ratio).sum()) / variance if variance > 0 else 0.0
