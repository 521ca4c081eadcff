"""How far approximate weights can be from exact ones: a bound from exact rows of a random sample.

Hats are what an approximate geometry gave, K and E the exact kernels of eps_s and eps_T, r = K 1.
With x = q* ⊙ 1[Sδ > 0] the weights are alpha S^T x and a constant. S^T preserves mass and every
source's share of the transport has mass one, so errors pass from step to step without growing:

    |ŝ - S^T x̂|_1 <= Σ_i |ŝ - K(x̂/r̂)|_i + Σ_i x̂_i |r_i/r̂_i - 1|
    |x̂ - x|_1     <= Σ_i q̂_i 1[signs of consensus differ] + |q̂ - q|_1
    |q̂ - q|_1     <= Σ_i |q̂ - q°|_i + mean_i |(Eâ)_i/κẐ_i - 1| + 2 Σ_i q°_i |e^η_i - 1|
    with q° = â ⊙ E(1/κẐ)/m, η = (v - v̂)/T and any κ > 0: what all of Ẑ is off by moves no mass
    TV(p̂, p)      <= alpha (|ŝ - s|_1 + |Σŝ - Σs|) / 2 ŝ_w

What is too much in one place is missing in another, so that a difference and its sum are together
at most twice its larger side. Where both are of mass one, as q̂ and q, that is |q̂ - q|_1 alone, in
any part of the memories; how far an approximation misses the mass of one is known, and added.

Every other term is a sum over memories of something that one exact row of K and of E tells about
one memory. So a sample of memories gives an unbiased estimate of the bound, and Student's t what it
may be at most. Scales, temperature and agreement are those of the allocation; rounding is left out.
"""

import math
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.allocation.backing import Votes, shares_of_votes
from sphere_replay.allocation.controls import Control
from sphere_replay.allocation.recipe import Sphere
from sphere_replay.allocation.result import Allocation, Certificate
from sphere_replay.geometry import EXACT_UP_TO, Geometry, exact_rows
from sphere_replay.geometry.kernels import kernel_of
from sphere_replay.geometry.threads import in_order

ROWS = 512
"""Memories whose exact rows are looked at."""
_ROWS_BEFORE = 64
"""Others, which tell κ."""

_CONFIDENCE, _QUANTILE = 0.99, 2.334
"""One-sided, of Student's t with 511 degrees of freedom."""

_PANEL_BYTES, _COLUMNS = 1 << 26, 1 << 14
"""Exact rows that are held at a time, and columns of them whose kernel is."""
_DOUBTFUL = 0.01
"""Times the mean size of a consensus: about where its sign is in doubt."""
SEED = 20
"""The sample is fixed by the number of memories and their weights: no caller's draws move."""

POOR = 0.05
"""Total variation from which on `allocate` warns, if it chose to approximate by itself."""

UNCERTIFIED = (Control.CONSENSUS, Control.MATCHED_MIR, Control.BACKING_PERMUTED)
"""Controls that match a temperature to the whole result, or shuffle it: no row tells how far."""


class Trace(NamedTuple):
    """What steps of an allocation computed on the way; None where a control skips the step."""

    row_sums: Tensor | None
    """r̂ `[m]`; zero where a memory that is left out has no neighbour."""
    log_reached: Tensor | None
    """log Ẑ `[m]` for a = exp((v - max v) / T)."""


def certify(
    result: Allocation,
    trace: Trace,
    delta: Tensor,
    geometry: Geometry,
    recipe: Sphere,
    labels: Tensor | None = None,
    seed: int = SEED,
) -> Certificate | None:
    """A bound on the error of the allocation; None if it is exact or its control has none."""
    rows = exact_rows(geometry)
    if rows is None or recipe.control in UNCERTIFIED:
        return None
    if result.temperature == 0 and result.agreement == 0:
        return Certificate(0.0, 1.0, 0)  # uniform, whatever the kernel
    if result.mass == 0:
        return Certificate(1.0, 1.0, 0)  # nothing is left to compare
    chances = _chances(result)
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(ROWS, dtype=torch.float64, generator=generator, device="cpu").to(chances)
    chosen = torch.searchsorted(chances.cumsum(0) / chances.sum(), points)
    chosen = chosen.clamp_(max=len(delta) - 1)
    terms = _Terms(result, trace, delta, recipe, labels)
    height = max(1, _PANEL_BYTES // (8 * geometry.size))
    before = torch.randint(len(delta), (_ROWS_BEFORE,), generator=generator, device="cpu")
    before = before.to(delta.device)
    terms.level((part, rows(part)) for part in torch.split(before, height))
    parts = torch.split(chosen, height)
    bounds = torch.cat(list(in_order(lambda part: terms.of(part, rows(part)), parts, delta.device)))
    sampled = bounds / chances[chosen]
    likely = sampled.mean() + _QUANTILE * sampled.std() / math.sqrt(ROWS) + terms.missed
    return Certificate(min(1.0, float(likely)), _CONFIDENCE, ROWS)


def warn_if_poor(error: Certificate | None, size: int) -> None:
    """Tell whoever let the library choose a geometry what to do instead."""
    if error is not None and error.total_variation > POOR:
        warnings.warn(
            f"replay probabilities of {size} memories are certified to "
            f"{error.total_variation:.0%} of total variation only: their kernel has no cheap "
            f'approximation. Pass geometry="exact", which takes time in proportion to m², or '
            f"score a pool of up to {EXACT_UP_TO} candidates, which is exact",
            stacklevel=3,
        )


def _chances(result: Allocation) -> Tensor:
    """A quarter each by number, target, weight and doubt: no term is far larger than its chance.

    In doubt are signs of a consensus near zero: few, but each has all of its target at stake.
    """
    target, weights, sizes = result.target, result.weights, result.consensus.abs()
    doubt = target / (1 + (sizes / (_DOUBTFUL * sizes.mean()).clamp(min=1e-300)).square())
    parts = torch.stack([torch.ones_like(target), target, weights, doubt])
    return (parts / parts.sum(dim=1, keepdim=True)).mean(dim=0)


class _Terms:
    """What the row of a memory adds to the bound."""

    def __init__(
        self,
        result: Allocation,
        trace: Trace,
        delta: Tensor,
        recipe: Sphere,
        labels: Tensor | None,
    ) -> None:
        self._result, self._trace, self._delta, self._labels = result, trace, delta, labels
        self._recipe = recipe
        self._alpha = 1.0 if recipe.control is Control.NO_FLOOR else recipe.alpha
        self._passed = result.target * (result.consensus > 0)
        self._common = 1.0  # κ
        self.missed = 0.0
        """What masses that should be one, or the same, add to the bound."""
        if recipe.control is not Control.NO_TRANSPORT and trace.log_reached is not None:
            gap = (result.sensitivity.sum() - self._passed.sum()).abs()
            gap += (result.target.sum() - 1).abs()
            self.missed = self._alpha * float(gap) / (2 * result.mass)
        if trace.row_sums is not None:
            alone = trace.row_sums == 0
            share = (self._passed / trace.row_sums.masked_fill(alone, 1.0)).masked_fill(alone, 0.0)
            self._alone = alone
            self._averaged = torch.stack([torch.ones_like(delta), delta, share], dim=1)
        if trace.log_reached is not None:
            risk = (result.support - result.support.max()) / result.temperature
            self._a = risk.exp()
            self._reached = torch.stack([self._a, (-trace.log_reached).exp()], dim=1)

    def level(self, rows: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Find κ by some memories and their exact costs to all."""
        if self._trace.log_reached is None:
            return
        reached, eps = self._trace.log_reached.exp(), self._result.eps_t
        ratios = [_products(costs, eps, self._a) / reached[chosen] for chosen, costs in rows]
        found = float(torch.cat(ratios).mean())
        if 0 < found < math.inf:
            self._common = found

    def of(self, chosen: Tensor, costs: Tensor) -> Tensor:
        """Terms `[n]` of some memories, from their exact costs to all `[n, m]`."""
        result, recipe = self._result, self._recipe
        consensus = self._delta[chosen]
        pulled = torch.zeros_like(consensus)
        if self._trace.row_sums is not None:
            themselves = torch.arange(len(chosen)), chosen
            if recipe.leave_one_out:
                costs[themselves] = torch.inf
            sums, increments, pulled = _products(costs, result.eps_s, self._averaged).T
            costs[themselves] = 0.0
            alone = sums == 0
            consensus = torch.where(alone, consensus, increments / sums.masked_fill(alone, 1.0))
            pulled = self._pull_back_error(chosen, sums, pulled)
        support = result.support[chosen]
        risk_error = consensus.clamp(min=0) - support
        flipped = torch.zeros_like(consensus)
        if result.temperature == 0 and recipe.control is not Control.NO_TRANSPORT:
            change = torch.zeros_like(consensus)  # no sensitivity, whatever the kernel
        elif recipe.control is Control.NO_TRANSPORT:
            change = 2 * risk_error.abs() / result.support.sum().clamp(min=1e-300)
        else:
            flipped = result.target[chosen] * ((consensus > 0) != (result.consensus[chosen] > 0))
            change = pulled + flipped + self._transport_error(chosen, costs, risk_error)
        backing = self._backing_error(chosen, costs)
        if backing is None:
            return self._alpha * (change + flipped) / (2 * result.mass)
        return (self._alpha * change + backing) / result.mass

    def _pull_back_error(self, chosen: Tensor, sums: Tensor, pulled: Tensor) -> Tensor:
        """Of S^T x̂, by its own row and by the row sum it was divided by."""
        assert self._trace.row_sums is not None
        if self._recipe.control is Control.NO_TRANSPORT:
            return torch.zeros_like(sums)
        used, passed = self._trace.row_sums[chosen], self._passed[chosen]
        alone = self._alone[chosen]
        own = (self._result.sensitivity[chosen] - pulled - passed * alone).abs()
        divided = passed * (sums / used.masked_fill(alone, 1.0) - 1).abs()
        return own + torch.where(alone, 2 * passed * (sums > 0), divided)

    def _transport_error(self, chosen: Tensor, costs: Tensor, risk_error: Tensor) -> Tensor:
        """Of the target: |q̂ - q|."""
        result, reached = self._result, self._trace.log_reached
        if reached is None:
            return torch.zeros_like(risk_error)
        sent, received = _products(costs, result.eps_t, self._reached).T
        size = len(result.target)
        target = self._a[chosen] * received / (self._common * size)
        divided = (sent / (self._common * reached[chosen].exp()) - 1).abs() / size
        risk = target * torch.expm1(risk_error / result.temperature).abs()
        error: Tensor = (result.target[chosen] - target).abs() + divided + 2 * risk
        return error

    def _backing_error(self, chosen: Tensor, costs: Tensor) -> Tensor | None:
        """Of weights that are multiplied by 1 - a + a backing; None if they are not."""
        result, a = self._result, self._result.agreement
        if a == 0 or self._labels is None or result.backing is None:
            return None
        kernel = kernel_of(costs, result.eps_s).to(result.weights.dtype)
        kernel[torch.arange(len(chosen)), chosen] = 0.0
        exact = shares_of_votes(kernel, self._labels, chosen, Votes(self._recipe.votes))
        # Not the weights over their factor, which may be zero.
        floor = (1 - self._alpha) / len(result.weights)
        unbacked = floor + self._alpha * result.sensitivity[chosen]
        return unbacked * a * (exact - result.backing[chosen]).abs()


def _products(costs: Tensor, eps: float, vectors: Tensor) -> Tensor:
    """exp(-C/eps) @ vectors `[m]` or `[m, p]`, summed in float64, a part of the costs at a time."""
    parts = zip(torch.split(costs, _COLUMNS, dim=1), torch.split(vectors, _COLUMNS), strict=True)
    products = (kernel_of(part, eps).to(vectors.dtype) @ values for part, values in parts)
    return sum(products, vectors.new_zeros(len(costs), *vectors.shape[1:]))
