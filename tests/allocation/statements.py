"""The paper's quantities in plain torch, shared by the tests of its statements.

Those tests, one a statement of Sections 3 and 4 and appendices A to G, compare what is exact to
`ROUNDING`: blend, bounds, consensus, descent, sensitivity, transport.
"""

import math

import torch
from hypothesis import assume
from torch import Tensor

from sphere_replay import Allocation, Sphere, allocate
from sphere_replay.geometry import Geometry, Precomputed, build_geometry
from strategies import Scored

ROUNDING = 1e-10


def smoothing_matrix(cost: Tensor, eps_s: float) -> Tensor:
    kernel = (-cost / eps_s).exp()
    return kernel / kernel.sum(dim=1, keepdim=True)


def transport_value(risk: Tensor, cost: Tensor, eps_t: float, tau: float) -> Tensor:
    """Eq. soft-transport-logsumexp."""
    temperature = tau * eps_t
    net = (risk[:, None] - tau * cost) / temperature
    return temperature * (torch.logsumexp(net, dim=0) - math.log(len(risk))).mean()


def value_of_increments(delta: Tensor, case: Scored) -> Tensor:
    """V_OT([S delta]_+) in plain torch."""
    risk = (smoothing_matrix(case.cost, case.eps_s) @ delta).relu()
    return transport_value(risk, case.cost, case.eps_t, case.tau)


def allocate_case(case: Scored, alpha: float = 0.5) -> Allocation:
    recipe = Sphere(
        eps_s=case.eps_s, eps_t=case.eps_t, tau=case.tau, alpha=alpha, distance=Precomputed()
    )
    return allocate(case.increments, case.cost, recipe)


def assume_decided(allocation: Allocation, delta: Tensor) -> None:
    """Leave out what rounding decides: a consensus, or a temperature, that is zero but for it."""
    largest = float(delta.abs().max())
    assume(bool((allocation.consensus.abs() > 1e-9 * largest).all()))
    assume(allocation.temperature == 0 or allocation.temperature > 1e-6 * largest)


def geometry_of(cost: Tensor) -> Geometry:
    return build_geometry(cost, Precomputed())
