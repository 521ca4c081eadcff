"""Kernel scales by how many neighbours they give: the inverse of N_eff, by secants.

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

_START, _SLOPE = 0.1, 4.0
"""Without a guess, a share of the largest cost; d log N_eff / d log eps before two sizes are known.
"""

_LEAP = math.log(16.0)
"""How far a step goes at most, in log eps: far from its root the slope tells little."""

_TOLERANCE = 1e-3
"""Of log N_eff."""

_FLAT, _NOTCH, _EDGE = 0.1, math.log(1.25), 1e-6
"""The slope of a plateau, which many scales are on: the least of them is meant. How far a look to
the left goes to measure a slope, and how sharply the end of a plateau is found."""

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
    alike, if all together are not more. A good `guess` shortens the search.
    """
    return scale_by_sizes(
        lambda eps: effective_sizes(costs, eps), float(costs.max()), neighbors, guess
    )


def scale_by_sizes(
    sizes: Callable[[float], Tensor], largest: float, neighbors: float, guess: float
) -> float:
    """The same for whoever knows N_eff `[n]` of every eps, and the largest cost."""

    def excess_at(place: float) -> float:
        return math.log(median(sizes(math.exp(place))) / neighbors)

    if largest == 0:
        return 0.0
    lowest, highest = math.log(largest * _NARROWEST), math.log(largest * _WIDEST)
    if not 0 < guess < largest:  # it may be that there is no root
        if excess_at(lowest) >= -_TOLERANCE:
            return 0.0
        if excess_at(highest) <= _TOLERANCE:
            return math.exp(highest)
        guess = largest * _START
    below, above = lowest, highest  # the root lies between them
    place, excess, slope, moved = math.log(guess), math.inf, _SLOPE, 0.0
    for _ in range(_STEPS):
        before, excess = excess, excess_at(place)
        if abs(excess) < _TOLERANCE:
            if not moved:
                slope = (excess - excess_at(place - _NOTCH)) / _NOTCH
            break
        below, above = (place, above) if excess < 0 else (below, place)
        if moved and (excess - before) / moved > 0:
            slope = (excess - before) / moved
        enclosed = below > lowest and above < highest
        stuck = abs(excess) > abs(before) / 2
        reach = abs(excess) / slope
        if stuck and not enclosed:  # on a plateau, slopes of elsewhere are no measure of the way
            reach = max(reach, 2 * abs(moved))
        here, place = place, place - math.copysign(min(reach, _LEAP), excess)
        if not below < place < above or (stuck and enclosed):
            place = (below + above) / 2  # secants are fast and halving is sure
        moved = place - here
    if slope > _FLAT:
        return math.exp(place)
    if below == lowest and excess_at(lowest) >= -_TOLERANCE:
        return 0.0
    while place - below > _EDGE:
        middle = (below + place) / 2
        below, place = (middle, place) if excess_at(middle) < -_TOLERANCE else (below, middle)
    return math.exp(place)
