"""The paper's guarantees as numbers: what smoothing costs, what it buys, what transport protects.

All bounds hold for increments δ = F + ξ whose mean response F is L_F-Lipschitz in the distance and
whose residuals ξ are independent, centred and σ-sub-Gaussian. `lipschitz` is L_F, `noise` is σ:
neither can be read off a single scoring, so both are the caller's to assume.
"""

import math
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from sphere_replay.geometry import Geometry, Neighborhood
from sphere_replay.geometry.threads import undisturbed
from sphere_replay.numeric import accumulation_dtype
from sphere_replay.validation import check_positive


@dataclass(frozen=True)
class EstimationBounds:
    """Proposition 1, `[m]` each."""

    bias: Tensor
    """|E[Sδ]_i - F_i| <= L_F r_i."""
    mean_squared_error: Tensor
    """E([Sδ]_i - F_i)² <= (L_F r_i)² + σ²/N_eff; clipping at zero never exceeds it."""


def estimation_bounds(
    geometry: Geometry, eps_s: float, *, lipschitz: float, noise: float
) -> EstimationBounds:
    """Bias and error of the consensus as an estimate of the mean response (Proposition 1)."""
    _check_assumptions(lipschitz, noise)
    around = _around(geometry, eps_s)
    bias = lipschitz * around.radius
    return EstimationBounds(bias, bias.square() + noise**2 / around.effective_size)


def transport_inflation_bound(
    geometry: Geometry,
    eps_s: float,
    *,
    lipschitz: float,
    noise: float,
    temperature: float | None = None,
    failure: float | None = None,
) -> float:
    """How far noise and smoothing can lift the transport value above that of the true field.

    By default Theorem 1, in expectation. With the transport's `temperature` T, the smaller of that
    and the corollary's temperature form. With `failure` ζ, the corollary's bound that holds with
    probability at least 1 - ζ.
    """
    _check_assumptions(lipschitz, noise)
    around = _around(geometry, eps_s)
    bias = lipschitz * float(around.radius.max())
    variance = noise**2 / float(around.effective_size.min())
    if failure is not None:
        if not 0 < failure < 1:
            raise ValueError(f"failure is a probability in (0, 1), got {failure}")
        return bias + math.sqrt(2 * math.log(2 * geometry.size / failure) * variance)
    expected = math.sqrt(2 * math.log(2 * geometry.size) * variance)
    if temperature is not None:
        check_positive(temperature=temperature)
        expected = min(expected, variance / (2 * temperature) + temperature * math.log(2))
    return bias + expected


def regional_mass_bound(size: int, region: int, gap: float, temperature: float) -> float:
    """Least target mass of `region` memories out of `size` (source-local regional mass bound).

    It holds if, from every source inside the region, each inside destination's risk net of distance
    exceeds each outside one's by `gap`.
    """
    check_positive(gap=gap, temperature=temperature)
    if not 1 <= region < size:
        raise ValueError(
            f"a region has at least 1 and fewer than all {size} memories, got {region}"
        )
    return region / size / (1 + (size - region) / region * math.exp(-gap / temperature))


def consensus_beats_raw(
    geometry: Geometry, eps_s: float, *, field: Tensor, variances: Tensor
) -> Tensor:
    """Where the consensus has a smaller mean squared error than the raw increment; bool `[m]`.

    Exact, not a bound: b_i² < v_i - Σ_j S_ij² v_j with b_i = Σ_j S_ij (F_j - F_i), for a mean
    response F (`field`) and residual variances v, both `[m]`.
    """
    precision = accumulation_dtype(geometry.device)
    field, variances = field.to(precision), variances.to(precision)

    def compare() -> Tensor:
        mass = geometry.apply_kernel(eps_s, field.new_ones(geometry.size))
        bias = geometry.apply_kernel(eps_s, field) / mass - field
        # exp(-C/eps)² is the kernel at half the scale.
        kept_variance = geometry.apply_kernel(eps_s / 2, variances) / mass.square()
        return bias.square() < variances - kept_variance

    return undisturbed(compare, geometry.size, geometry.device)


def _around(geometry: Geometry, eps_s: float) -> Neighborhood:
    work = partial(geometry.neighborhood, eps_s)
    return undisturbed(work, geometry.size, geometry.device)


def _check_assumptions(lipschitz: float, noise: float) -> None:
    if lipschitz < 0:
        raise ValueError(f"lipschitz (L_F) must not be negative, got {lipschitz}")
    check_positive(noise=noise)
