"""Kernel scales by how many neighbours they give: the inverse of N_eff, by bracketing.

N_eff = (Σ_j K_ij)² / Σ_j K_ij² of K = exp(-C/eps) grows with eps: from the number of memories that
coincide with i, for a kernel of width zero, to m. So does its median over memories.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sphere_replay.numeric import median

_LEAST_EXPONENT = -40.0
"""exp() of less is nothing beside K_ii = 1, and its square is still a normal float32."""

_NARROWEST, _WIDEST = 1e-13, 1e3
"""The search, in units of the largest cost. At its end all memories count alike."""

_DOUBT = 1.25
"""A guess from a few rows is this factor off at most; where it is not, the search starts afresh."""

_TOLERANCE = 1e-3
"""Of log N_eff."""

_STEPS = 100


def effective_sizes(costs: Tensor, eps: float) -> Tensor:
    """N_eff of each row of costs `[n, m]`: `[n]`."""
    kernel = faded(costs, eps)
    norms: Tensor = torch.linalg.vector_norm(kernel, dim=1)
    return (kernel.sum(dim=1) / norms).square()


def faded(costs: Tensor, eps: float) -> Tensor:
    """exp(-C/eps), as far as it is anything beside 1."""
    return torch.mul(costs, -1 / eps).clamp_(min=_LEAST_EXPONENT).exp_()


def scale_of_neighbors(costs: Tensor, neighbors: float, guess: float = 0.0) -> float:
    """The eps at which the median N_eff of costs `[n, m]` is `neighbors`.

    0 if coincident memories alone are as many, and the end of the search, where all memories count
    alike, if all together are too few. A good `guess` shortens the search.
    """
    return scale_by_sizes(
        lambda eps: effective_sizes(costs, eps), float(costs.max()), neighbors, guess
    )


def scale_by_sizes(
    sizes: Callable[[float], Tensor], largest: float, neighbors: float, guess: float
) -> float:
    """The same for whoever knows N_eff `[n]` of every eps, and the largest cost."""

    def excess(eps: float) -> float:
        return math.log(median(sizes(eps)) / neighbors)

    if largest == 0:
        return 0.0
    if guess > 0:
        low, high = guess / _DOUBT, guess * _DOUBT
        below, above = excess(low), excess(high)
    if guess == 0 or not below < 0 < above:
        low, high = largest * _NARROWEST, largest * _WIDEST
        below, above = excess(low), excess(high)
        if below >= -_TOLERANCE:
            return 0.0
        if above <= 0:
            return high
    for step in range(_STEPS):
        # Interpolating is fast and halving is sure: in turn they are both.
        share = 0.5 if step % 2 else -below / (above - below)
        middle = low * math.pow(high / low, share)
        found = excess(middle)
        if abs(found) < _TOLERANCE:
            break
        if found < 0:
            low, below = middle, found
        else:
            high, above = middle, found
    return middle
