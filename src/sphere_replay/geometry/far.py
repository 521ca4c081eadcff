"""The kernel between memories that are not near: carried from cell to cell by moments.

From x, the members c_b + v of a cell lie at squared distances |D - v|², D = x - c_b. The mean of
exp(-|D - v|²/eps) over them is, up to second cumulants of the exponent,

    log F_xb = -|D|²/eps - mean|v|²/eps + 2 D^T Σ_b D/eps² - 2 D·t_b/eps² + var|v|²/2eps²

Between the members c_a + u of a cell it changes with the slopes of F_ab along u, which differ from
cell to cell: by log E_b e^(s_b·u), in all orders, because a kernel that reaches many clusters is
steep in as many directions. Cells with the least part in the kernel count as one there, whose slope
varies as that of all. What is left out goes with it, and a few exact rows tell by how much (see
`pilot`). Values w that differ within a cell tilt its mean: W_b = Σ_j w_j becomes
W_b + cov(w, exponent). So the sum over all far memories j is

    Σ_j K_ij w_j = g_i (A_a + u_i·B_a)

where g_i holds all that is the same for all w; A and B are linear in w. For distances that are
square roots, 1/eps becomes 1/(2 eps |D|), and the bend of the root adds to both second orders.
"""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vecdot
from torch.nn.functional import threshold

from sphere_replay.geometry.cells import Cells, squared_between
from sphere_replay.geometry.moments import Moments
from sphere_replay.geometry.scratch import working
from sphere_replay.geometry.threads import in_order

LEAST_EXPONENT, LARGEST_EXPONENT = -87.0, 30.0
"""exp() of less is no normal number; more is no correction any longer."""

_TINY, _LEAST_REST = 1e-12, 1e-5
_TOLD_APART = 2048
"""Cells whose slopes are looked at one by one, from each memory: those with the largest part."""


class Reach(NamedTuple):
    """How some cells a see all others b, each `[n, c]` or one number for all."""

    kernel: Tensor
    """F_ab from the center of a; zero for near cells."""
    slope: Tensor
    """-d log K / d |D|²."""
    bend: Tensor
    """What multiplies D^T Σ_b D in log F."""
    root_bend: Tensor
    """Of the square root along u, in units of the squared slope along u; 0 without one."""


class Seen(NamedTuple):
    """The far field of w = 1 in some cells."""

    mass: Tensor
    """At their centers, `[n]`."""
    slopes: Tensor
    """First part of the slope of its logarithm, `[n, d]`."""
    gains: Tensor
    """g of their members."""
    spreads: Tensor
    """The part of log g that slopes have which differ from cell to cell."""


class Members(NamedTuple):
    """How the members of a few cells lie around their centers."""

    deviations: Tensor
    """u, `[n, d]`."""
    own_cell: Tensor
    """Which of the few cells is theirs, `[n]`."""
    sizes: list[int]
    """How many each of the few has."""

    def along(self, directions: Tensor) -> Tensor:
        """u·x, `[n]`, with an x of each cell `[b, d]`."""
        found: Tensor = vecdot(self.deviations, directions.index_select(0, self.own_cell))
        return found


class Far:
    """The far part of exp(-C/eps) for one scale.

    Args:
        cells: Of the memories.
        moments: Of the cells.
        eps: Kernel scale in units of the raw distances.
        near: Which pairs of cells are left out, bool `[c, c]`.
        root: Whether distances are square roots.
    """

    def __init__(
        self, cells: Cells, moments: Moments, eps: float, near: Tensor, *, root: bool
    ) -> None:
        self._cells, self._moments, self._eps, self._root = cells, moments, eps, root
        self._near = near
        self._level, self._tilt = 1.0, 0.0

    def fitted(self, level: float, tilt: float) -> "Far":
        """The same, times a number and e^(tilt * spread): what it is off on average."""
        self._level, self._tilt = level, tilt
        return self

    def at_scale(self, eps: float) -> "Far":
        """The same for another, similar scale."""
        other = Far(self._cells, self._moments, eps, self._near, root=self._root)
        return other.fitted(self._level, self._tilt)

    @cached_property
    def _seen(self) -> Seen:
        seen = in_order(self.look, self._moments.batches(), self._cells.points.device)
        return Seen(*(torch.cat(each) for each in zip(*seen, strict=True)))

    def sums(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j K_ij over all far j and the spread of their slopes, of a few places: unfitted."""
        own = self._cells.cell_of[places]
        sums, spreads = torch.empty(2, len(places), device=places.device)
        cells = torch.split(torch.unique(own), 1)
        for cell, seen in zip(cells, in_order(self.look, cells, places.device), strict=True):
            here = own == cell
            inside = places[here] - self._cells.spans[int(cell)].start
            sums[here] = seen.mass * seen.gains[inside]
            spreads[here] = seen.spreads[inside]
        return sums, spreads

    def apply(self, stacked: Tensor) -> Tensor:
        """Σ_j K_ij w_j over all far j, for w `[m, p]` by place."""
        cells, centers, skew = self._cells, self._cells.centers, self._moments.skew
        seen = self._seen
        gains = (self._tilt * seen.spreads).exp_().mul_(seen.gains).mul_(self._level)
        totals, lengths, tilts = self._weighted(stacked)
        tilts_inside = (tilts * centers[:, None]).sum(dim=2).T
        count, by_cell = stacked.shape[1], tilts.transpose(0, 1).flatten(0, 1)
        side_by_side = tilts.flatten(1)
        result = torch.empty_like(stacked)

        def carry(batch: Tensor) -> None:
            reach, own = self._reach(batch), centers[batch]
            slope = reach.slope[:, None]
            toward = (own @ by_cell.T).view(len(batch), count, -1) - tilts_inside
            weights = toward.mul_(2).sub_(lengths).mul_(slope).add_(totals)
            weights *= reach.kernel[:, None]
            mass = weights.sum(dim=2)
            change = mass[:, :, None] * -seen.slopes[batch, None]
            sloped = weights.mul_(slope)
            change += 2 * (sloped @ centers - sloped.sum(dim=2, keepdim=True) * own[:, None])
            tilted = (reach.kernel * reach.slope) @ side_by_side
            change += 2 * (tilted.view_as(change) - sloped.mul_(slope) @ skew)
            slots, (places, _) = cells.slots(batch), cells.together(batch)
            field = torch.baddbmm(mass[:, None], slots.filled(cells.around(batch)), change.mT)
            torch.mul(slots.emptied(field), gains[places, None], out=result[places])

        for _ in in_order(carry, self._moments.batches(), stacked.device):
            pass
        # Linear in w, a field of positive values could fall below zero where they are very uneven.
        positive = (stacked >= 0).all(dim=0)
        return torch.where(positive, result.clamp(min=0), result)

    def look(self, batch: Tensor) -> Seen:
        """What the members of some adjacent cells see of all that is far."""
        cells, moments, centers = self._cells, self._moments, self._cells.centers
        reach, own = self._reach(batch), centers[batch]
        numbers = reach.kernel * cells.sizes
        mass = numbers.sum(dim=1)
        share = numbers / mass.clamp(min=_TINY)[:, None]
        sloped, bent = share * reach.slope, share * reach.bend
        slope, bend = sloped.sum(dim=1), bent.sum(dim=1)
        slopes = 2 * (sloped @ centers - slope[:, None] * own)
        slopes -= 2 * (sloped * reach.slope) @ moments.skew
        widths = moments.along(cells, batch).mul_(bent[:, None]).flatten(1)
        turned = widths @ moments.factors.flatten(0, 1)
        common = bent * moments.share
        apart = common.sum(dim=1, keepdim=True) * own - common @ centers
        steepness = slopes + 2 * (turned + apart @ moments.common)
        most = share.topk(min(_TOLD_APART, len(cells)), dim=1, sorted=False)
        toward = working("toward", (most.indices.shape[1], own.shape[1]), own.dtype, own.device)
        if self._root:
            damped = self._damp(float(bend.sum() / slope.sum().clamp(min=_TINY)))
            usual = 2 * (sloped @ damped - slope[:, None] * damped[batch])
            variation, factor = self._variation(damped), (2 * slope).square()
        else:
            damped, usual = self._slopes, share @ self._slopes
            variation, factor = self._slope_variation, torch.ones_like(slope)

        def slopes_toward(row: int) -> Tensor:
            chosen = most.indices[row]
            found = torch.index_select(damped, 0, chosen, out=toward)
            if self._root:
                found.sub_(damped[batch[row]]).mul_(2 * reach.slope[row, chosen, None])
            return found

        places, own_cell = cells.together(batch)
        members = Members(cells.around(batch), own_cell, cells.sizes[batch].tolist())
        varied = vecdot(members.deviations @ variation, members.deviations) * factor[own_cell]
        spread = _spread(members, slopes_toward, most.values, usual, varied)
        along_slope = members.along(slopes)
        exponent = members.along(steepness) - slope[own_cell] * moments.lengths[places]
        root_bend = (share * reach.root_bend).sum(dim=1)[own_cell]
        exponent += spread + root_bend * (2 * spread + along_slope.square())
        exponent += bend[own_cell] * moments.covered[places]
        gains = exponent.clamp_(LEAST_EXPONENT, LARGEST_EXPONENT).exp_()
        return Seen(mass, slopes, gains, spread)

    def _reach(self, batch: Tensor) -> Reach:
        centers, moments, eps = self._cells.centers, self._moments, self._eps
        lengths = self._cells.lengths
        squared = squared_between(centers[batch], centers, lengths)
        if self._root:
            distance = squared.clamp(min=_TINY).sqrt()
            exponent, slope = distance / -eps, 1 / (2 * eps * distance)
            bend, root_bend = 2 * slope.square() + slope / distance.square(), eps / (2 * distance)
        else:
            exponent, slope = squared / -eps, squared.new_full((1, 1), 1 / eps)
            bend, root_bend = 2 * slope.square(), torch.zeros_like(slope)
        skewed = centers[batch] @ moments.skew.T - moments.skew_inside
        # Cells that are too wide for the scale have no use for more than half of the way.
        widened = torch.minimum(bend * moments.seen[batch], exponent / -2)
        exponent += widened - slope * moments.length
        exponent += slope.square() * (moments.wobble / 2 - 2 * skewed)
        kernel = exponent.clamp_(LEAST_EXPONENT, 0.0).exp_()
        return Reach(kernel.masked_fill_(self._near[batch], 0.0), slope, bend, root_bend)

    @cached_property
    def _slopes(self) -> Tensor:
        """Toward all cells, from anywhere, but for what they have in common; not for roots."""
        return self._damp(2 / self._eps) * (2 / self._eps)

    @cached_property
    def _slope_variation(self) -> Tensor:
        return self._variation(self._slopes)

    def _variation(self, slopes: Tensor) -> Tensor:
        """Covariance `[d, d]` over memories of the slopes toward their cells `[c, d]`."""
        share = self._cells.sizes.to(slopes.dtype) / len(self._cells.points)
        apart = slopes - share @ slopes
        return (apart * share[:, None]).T @ apart

    def _damp(self, ratio: float) -> Tensor:
        """Centers as slopes see them, for so many bends to a slope.

        Members of a cell that is wide in the direction of a slope lie on both sides of it.
        """
        covariance, centers = self._moments.covariance, self._cells.centers
        wider = torch.eye(len(covariance), device=covariance.device) + ratio * covariance
        damped: Tensor = torch.linalg.solve(wider, centers.T)
        return damped.T.contiguous()

    def _weighted(self, stacked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Σ w `[p, c]`, Σ w (|v|² - mean) `[p, c]` and Σ w v `[c, p, d]` of each cell."""
        cells, moments = self._cells, self._moments
        count, (number, dim) = stacked.shape[1], cells.centers.shape
        totals, lengths = stacked.new_zeros(2, number, count)
        tilts = stacked.new_empty(number, count, dim)

        def weigh(batch: Tensor) -> None:
            slots, (places, own_cell) = cells.slots(batch), cells.together(batch)
            longer = moments.lengths[places] - moments.length[batch][own_cell]
            values = stacked[places]
            totals.index_add_(0, cells.cell_of[places], values)
            lengths.index_add_(0, cells.cell_of[places], values * longer[:, None])
            tilts[batch] = slots.filled(values).mT @ slots.filled(cells.around(batch))

        for _ in in_order(weigh, moments.batches(), stacked.device):
            pass
        return totals.T.contiguous(), lengths.T.contiguous(), tilts


def _spread(
    members: Members,
    slopes: Callable[[int], Tensor],
    share: Tensor,
    usual: Tensor,
    varied: Tensor,
) -> Tensor:
    """By how much members `[n]` of a few cells see more than their centers do: slopes differ.

    log E e^(s·u), about half of the variance of s·u, around the mean of all slopes s.

    Args:
        members: How they lie in their cells.
        slopes: s toward some cells, `[k, d]`, from each of the few; the next call's, too.
        share: Of these cells, `[b, k]`.
        usual: The mean of all slopes, `[b, d]`, which tells that of the rest.
        varied: The variance of s·u over the rest, `[n]`.
    """
    common = members.along(usual)
    total, left = torch.empty_like(common), usual.clone()
    parts = (torch.split(each, members.sizes) for each in (members.deviations, common, total))
    for row, (deviations, shift, part) in enumerate(zip(*parts, strict=True)):
        toward = slopes(row)
        shape = len(deviations), len(toward)
        seen = working("seen along", shape, deviations.dtype, deviations.device)
        torch.addmm(shift[:, None], deviations, toward.T, beta=-1, out=seen)
        torch.mv(seen.clamp_(max=LARGEST_EXPONENT).exp_(), share[row], out=part)
        left[row] -= share[row] @ toward
    # Where all cells are told apart, what is left is a rounding; what it is multiplied by is not.
    rest = threshold(1 - share.sum(dim=1), _LEAST_REST, 0.0)
    other = members.along(left / rest.clamp(min=_LEAST_REST)[:, None]) - common + varied / 2
    total += rest[members.own_cell] * other.clamp_(max=LARGEST_EXPONENT).exp_()
    return total.clamp_(min=_TINY).log_()
