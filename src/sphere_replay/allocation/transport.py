"""One-sided entropic transport of uniform mass toward risk (the equations of V_OT and Π*).

With a_i = exp(v_i/T) and E = exp(-C/eps_T) the plan is Π_ij = a_i E_ij / (m Z_j), Z = E a, so its
target marginal q* and its value need two kernel products and no plan:

    q*   = a ⊙ E(1/Z) / m
    V_OT = T (mean_j log Z_j - log m)
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.geometry import Geometry

LARGEST_EXPONENT = {torch.float32: 40.0, torch.float64: 600.0}
"""Risks further apart than this many temperatures go to the log domain: a_i/Z_j must stay far below
the reciprocal of the smallest kernel value, and sums far from underflow."""

_ROUNDING = 1e-3
_LARGEST_LOGARITHM = 1e5
"""Beyond it the rounding of logarithms, 1e-11 of each mass there, is no longer negligible."""


class Transport(NamedTuple):
    """Where the mass goes, and what the transport is worth."""

    target: Tensor
    """q*, `[m]`: mass arriving at each memory, a probability vector; the gradient of the value."""
    value: float
    """V_OT."""
    log_reached: Tensor | None = None
    """log Z, `[m]`; None at T = 0."""


def transport(geometry: Geometry, eps_t: float, temperature: float, risk: Tensor) -> Transport:
    """Solve the transport for risks v `[m]` at temperature T = tau * eps_T >= 0.

    At T = 0 distance and entropy cost nothing. No mass is moved then (the target stays uniform),
    and the value is its limit, the largest risk.
    """
    size = len(risk)
    top = float(risk.max())
    if temperature == 0:
        return Transport(torch.full_like(risk, 1 / size), top)
    log_a = (risk - top) / temperature
    spread = -float(log_a.min())
    if spread <= LARGEST_EXPONENT[geometry.dtype]:
        a = log_a.exp()
        reached = geometry.apply_kernel(eps_t, a)
        target = a * geometry.apply_kernel(eps_t, 1 / reached) / size
        log_reached = reached.log()
    elif spread <= _LARGEST_LOGARITHM:
        log_reached = geometry.apply_log_kernel(eps_t, log_a)
        log_target = log_a + geometry.apply_log_kernel(eps_t, -log_reached) - math.log(size)
        # No mass is larger than one, but that of a kernel which is far off.
        too_large = float(log_target.max()) > _ROUNDING
        target = torch.softmax(log_target, dim=0) if too_large else log_target.exp()
    else:
        target, log_reached = geometry.log_transport(eps_t, log_a)
    value = top + temperature * (float(log_reached.mean()) - math.log(size))
    return Transport(target, value, log_reached)
