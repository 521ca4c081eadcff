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
one memory. So a sample of memories gives an unbiased estimate of the bound, and Student's t, with a
correction for rare large terms, what it may be at most. The mass s_w is off by no larger a share.
Scales, temperature and agreement are those of the allocation; rounding is left out.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.allocation.backing import Votes, shares_of_votes
from sphere_replay.allocation.controls import Control
from sphere_replay.allocation.recipe import Sphere
from sphere_replay.allocation.result import Allocation, Certificate
from sphere_replay.allocation.transport import LARGEST_EXPONENT
from sphere_replay.errors import caution
from sphere_replay.geometry import (
    EXACT_UP_TO,
    ExactRows,
    Geometry,
    LowRankGeometry,
    SparseGeometry,
    exact_rows,
)
from sphere_replay.geometry.kernels import kernel_of
from sphere_replay.geometry.threads import in_order, slices
from sphere_replay.numeric import accumulation_dtype

ROWS = 512
"""Memories whose exact rows are looked at."""
_ROWS_BEFORE = 64
"""Others, which tell κ."""

_CONFIDENCE, _QUANTILE = 0.99, 2.334
"""One-sided, of Student's t with 511 degrees of freedom."""

_COLUMNS = 1 << 12
"""Of these rows, that a thread looks at."""
_PLAIN_UP_TO = LARGEST_EXPONENT[torch.float32]
"""Risks further apart are asked for by logarithms, as the transport takes them."""
_NO_SHARE, _NO_NUMBER = 80.0, 700.0
"""Logarithms that no share of the transport has, unless it is wrong by far, and that no number."""
_VOTES_HELD = 1 << 20
"""Of sampled memories for all labels at a time; a thread may have three such pieces."""
_DOUBTFUL = 0.01
"""Times the mean size of a consensus: about where its sign is in doubt."""
SEED = 20
"""The sample is fixed by the number of memories and their weights: no caller's draws move."""

POOR = 0.05
"""Total variation from which on `allocate` warns."""

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
    if (
        result.temperature == 0
        and result.agreement == 0
        and recipe.control is not Control.NO_TRANSPORT
    ):
        return Certificate(0.0, 1.0, 0)  # uniform, whatever the kernel
    if result.mass == 0:
        return Certificate(1.0, 1.0, 0)  # nothing is left to compare
    chances = _chances(result)
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(ROWS, dtype=torch.float64, generator=generator, device="cpu").to(chances)
    chosen = torch.searchsorted(chances.cumsum(0) / chances.sum(), points)
    chosen = chosen.clamp_(max=len(delta) - 1)
    terms = _Terms(rows, result, trace, delta, recipe, labels)
    before = torch.randint(len(delta), (_ROWS_BEFORE,), generator=generator, device="cpu")
    terms.level(before.to(delta.device))
    likely = _upper_limit(terms.of(chosen) / chances[chosen]) + terms.missed
    return Certificate(min(1.0, likely), _CONFIDENCE, ROWS)


def _upper_limit(sampled: Tensor) -> float:
    """What the mean of a skewed population is at most, by Chen's correction of Student's t."""
    count, mean, deviation = len(sampled), sampled.mean(), sampled.std()
    if deviation == 0:
        return float(mean)
    skewness = float(((sampled - mean) / deviation).pow(3).mean())
    quantile = _QUANTILE + skewness * (1 + 2 * _QUANTILE**2) / (6 * math.sqrt(count))
    return float(mean + max(quantile, _QUANTILE) * deviation / math.sqrt(count))


def warn_if_poor(result: Allocation) -> None:
    """Tell what to do instead, and where it says what the approximation has left out."""
    error, geometry = result.error, result.geometry
    if error is None or error.total_variation <= POOR:
        return
    message = (
        f"replay probabilities of {len(result)} memories are certified to "
        f"{error.total_variation:.0%} of total variation only, though the truth may be far better. "
    )
    if len(result) <= EXACT_UP_TO:
        message += "So few are exact if geometry= is left out"
    else:
        if isinstance(geometry, SparseGeometry | LowRankGeometry):
            message += "Cells may be closer, if geometry= is left out. "
        message += (
            'Pass geometry="exact" to allocate(), which takes time in proportion to m², '
            f"or pool= to Replay: up to {EXACT_UP_TO} candidates are exact"
        )
    if geometry is not None:
        message += ". allocation.geometry.explained() says how kernels were applied"
    caution(message)


def _chances(result: Allocation) -> Tensor:
    """A quarter each by number, target, weight and doubt: no term is far larger than its chance.

    In doubt are signs of a consensus near zero: few, but each has all of its target at stake.
    """
    target, weights, sizes = result.target, result.weights, result.consensus.abs()
    doubt = target / (1 + (sizes / (_DOUBTFUL * sizes.mean()).clamp(min=1e-300)).square())
    parts = torch.stack([torch.ones_like(target), target, weights, doubt])
    return (parts / parts.sum(dim=1, keepdim=True)).mean(dim=0)


class _Question(NamedTuple):
    """What to sum over the columns of exact kernel rows."""

    eps: float
    others_only: bool
    """Whether a memory's own column counts for nothing."""
    answer: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Of some columns of the rows `[n, k]`, the memories these are `[k]`, and those asked for."""
    logarithms: bool = False
    """Whether it is asked of the kernel's logarithm, which may be that of no number."""


class _Terms:
    """What the row of a memory adds to the bound."""

    def __init__(
        self,
        rows: ExactRows,
        result: Allocation,
        trace: Trace,
        delta: Tensor,
        recipe: Sphere,
        labels: Tensor | None,
    ) -> None:
        self._rows, self._result, self._trace, self._delta = rows, result, trace, delta
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
        self._questions: dict[str, _Question] = {}
        self._counts = torch.ones(1, dtype=torch.int64, device=delta.device)
        if trace.row_sums is not None:
            alone = trace.row_sums == 0
            share = (self._passed / trace.row_sums.masked_fill(alone, 1.0)).masked_fill(alone, 0.0)
            self._alone = alone
            averaged = torch.stack([torch.ones_like(delta), delta, share], dim=1)
            self._questions["averages"] = _Question(
                result.eps_s, recipe.leave_one_out, lambda kernel, who, _: kernel @ averaged[who]
            )
        if trace.log_reached is not None:
            log_a = (result.support - result.support.max()) / result.temperature
            carried = torch.stack([log_a, -trace.log_reached], dim=1)
            self._carried = carried
            far_apart = float(log_a.min()) < -_PLAIN_UP_TO
            answer = self._log_plan if far_apart else self._plan
            self._questions["transport"] = _Question(result.eps_t, False, answer, far_apart)
        if result.agreement > 0 and labels is not None:
            _, self._belongs, self._counts = torch.unique(
                labels, return_inverse=True, return_counts=True
            )
            self._questions["votes"] = _Question(result.eps_s, True, self._votes)

    def level(self, chosen: Tensor) -> None:
        """Find κ by some memories."""
        name = "transport"
        if self._trace.log_reached is None:
            return
        sent = _answers(self._rows, chosen, {name: self._questions[name]})[name][:, 0]
        common = float(sent.mean())
        if 0 < common < math.inf:
            self._common = common

    def of(self, chosen: Tensor) -> Tensor:
        """Terms `[n]` of some memories; so many at a time that votes on all labels can be held."""
        held = max(1, _VOTES_HELD // len(self._counts))
        return torch.cat([self._of(some) for some in torch.split(chosen, held)])

    def _of(self, chosen: Tensor) -> Tensor:
        result, recipe = self._result, self._recipe
        answers = _answers(self._rows, chosen, self._questions)
        consensus = self._delta[chosen]
        pulled = torch.zeros_like(consensus)
        if "averages" in answers:
            sums, increments, pulled = answers["averages"].T
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
            change = pulled + flipped
            if "transport" in answers:
                change += self._transport_error(chosen, answers["transport"], risk_error)
        if "votes" not in answers:
            return self._alpha * (change + flipped) / (2 * result.mass)
        backing = self._backing_error(chosen, answers["votes"])
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

    def _transport_error(self, chosen: Tensor, carried: Tensor, risk_error: Tensor) -> Tensor:
        """Of the target: |q̂ - q|."""
        result, size = self._result, len(self._result.target)
        sent, received = carried.T / self._common
        target = received / size
        divided = (sent - 1).abs() / size
        shift = risk_error / result.temperature
        # What both are too small and too large for numbers is taken for the smallest there is.
        log_target = target.clamp(min=torch.finfo(target.dtype).tiny).log()
        moved = (log_target + shift).clamp(max=_NO_SHARE).exp()
        risk = torch.where(shift < _NO_NUMBER, target * torch.expm1(shift).abs(), moved)
        error: Tensor = (result.target[chosen] - target).abs() + divided + 2 * risk
        return error

    def _plan(self, kernel: Tensor, who: Tensor, chosen: Tensor) -> Tensor:
        """What a memory sends to the others and receives from them: (Eâ)/Ẑ and â E(1/Ẑ)."""
        return (kernel @ self._carried[who].exp()) * self._carried[chosen].flip(1).exp()

    def _log_plan(self, exponents: Tensor, who: Tensor, chosen: Tensor) -> Tensor:
        """The same where neither a kernel nor a risk need be a number: their product is."""
        logs = (
            exponents + there + own[:, None]
            for there, own in zip(
                self._carried[who].T, self._carried[chosen].flip(1).T, strict=True
            )
        )
        return torch.stack([log.clamp_(max=_NO_SHARE).exp_().sum(dim=1) for log in logs], dim=1)

    def _votes(self, kernel: Tensor, who: Tensor, _: Tensor) -> Tensor:
        cast = kernel.new_zeros(len(kernel), len(self._counts))
        return cast.index_add_(1, self._belongs[who], kernel)

    def _backing_error(self, chosen: Tensor, votes: Tensor) -> Tensor:
        """Of weights that are multiplied by 1 - a + a backing."""
        result, kind = self._result, Votes(self._recipe.votes)
        assert result.backing is not None
        exact = shares_of_votes(votes, self._belongs[chosen], self._counts, kind)
        # Not the weights over their factor, which may be zero.
        floor = (1 - self._alpha) / len(result.weights)
        unbacked = floor + self._alpha * result.sensitivity[chosen]
        return unbacked * result.agreement * (exact - result.backing[chosen]).abs()


def _answers(
    rows: ExactRows, chosen: Tensor, questions: Mapping[str, _Question]
) -> dict[str, Tensor]:
    """To each question for each of some memories, `[n, p]`, summed in float64."""
    order, costs = rows
    precise = accumulation_dtype(order.device)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    own = places[chosen]

    def of_part(part: slice) -> list[Tensor]:
        who, values = order[part], costs(chosen, part)
        here = ((own >= part.start) & (own < part.stop)).nonzero()[:, 0]
        found = []
        for eps, others_only, answer, logarithms in questions.values():
            kernel = values.to(precise) / -eps if logarithms else kernel_of(values, eps).to(precise)
            if others_only:
                kernel[here, own[here] - part.start] = 0.0
            found.append(answer(kernel, who, chosen))
        return found

    parts = in_order(of_part, slices(len(order), _COLUMNS), order.device)
    totals = next(parts)
    for part in parts:
        for total, more in zip(totals, part, strict=True):
            total += more
    return dict(zip(questions, totals, strict=True))
