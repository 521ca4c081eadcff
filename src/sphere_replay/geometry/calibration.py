"""Kernel scales by how many neighbours they give: the inverse of N_eff, by secants.

N_eff = (Σ_j K_ij)² / Σ_j K_ij² of K = exp(-C/eps) grows with eps: from the number of memories that
coincide with i, for a kernel of width zero, to m. So does its median over memories.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.geometry.kernels import kernel_of
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


_SAMPLE, _SAMPLE_OF_MANY, _MANY = 128, 32, 1 << 18
"""Memories that settle a scale, and of more than so many."""


def sampled(size: int) -> int:
    """How many of `size` memories are asked for their N_eff."""
    return _SAMPLE if size <= _MANY else _SAMPLE_OF_MANY


class Scale(NamedTuple):
    """A kernel scale."""

    eps: float
    slope: float = _SLOPE
    """d log N_eff / d log eps at it."""


def effective_sizes(costs: Tensor, eps: float) -> Tensor:
    """N_eff of each row of costs `[n, m]`: `[n]`."""
    kernel = faded(costs, eps)
    norms: Tensor = torch.linalg.vector_norm(kernel, dim=1)
    return (kernel.sum(dim=1) / norms).square()


def faded(costs: Tensor, eps: float) -> Tensor:
    """exp(-C/eps), as far as it is anything beside 1."""
    return kernel_of(costs, eps, least=_LEAST_EXPONENT)


def scales_of_neighbors(
    costs: Tensor, neighbors: Sequence[float], guesses: Sequence[Scale] = ()
) -> list[Scale]:
    """For each wanted number the eps at which it is the median N_eff of costs `[n, m]`.

    0 if coincident memories alone are as many, and the end of the search, where all memories count
    alike, if all together are not more. Good `guesses` shorten the search.
    """
    largest, size = float(costs.max()), costs.shape[1]
    return scales_by_sizes(
        lambda eps: effective_sizes(costs, eps), largest, size, neighbors, guesses
    )


def scales_by_sizes(
    sizes: Callable[[float], Tensor],
    largest: float,
    size: int,
    neighbors: Sequence[float],
    guesses: Sequence[Scale] = (),
) -> list[Scale]:
    """The same for whoever knows N_eff `[n]` of every eps, the largest cost, and m."""
    if largest == 0:
        return [Scale(0.0)] * len(neighbors)
    lowest, highest = math.log(largest * _NARROWEST), math.log(largest * _WIDEST)
    looks: dict[float, float] = {}

    def size_at(place: float) -> float:
        if place not in looks:
            looks[place] = median(sizes(math.exp(place)))
        return looks[place]

    def found(wanted: float, guess: Scale) -> Scale:
        if math.log(size / wanted) <= _TOLERANCE:
            return Scale(math.exp(highest))
        if 0 < guess.eps < largest:
            return _searched(size_at, wanted, guess, lowest, highest)
        if math.log(size_at(lowest) / wanted) >= -_TOLERANCE:
            return Scale(0.0)
        start = _between(looks, wanted, lowest) or Scale(largest * _START)
        return _searched(size_at, wanted, start, lowest, highest)

    scales: dict[float, Scale] = {}
    for wanted, guess in zip(neighbors, guesses or repeat(Scale(0.0)), strict=False):
        if wanted not in scales:
            scales[wanted] = found(wanted, guess)
    return [scales[wanted] for wanted in neighbors]


def _between(looks: Mapping[float, float], wanted: float, lowest: float) -> Scale | None:
    """A guess by what was seen on both sides of it while others were searched for."""
    below = max((place for place, size in looks.items() if size < wanted), default=lowest)
    above = min((place for place, size in looks.items() if size > wanted), default=lowest)
    if not lowest < below < above:
        return None
    slope = math.log(looks[above] / looks[below]) / (above - below)
    return Scale(math.exp(below + math.log(wanted / looks[below]) / slope), slope)


def _searched(
    size_at: Callable[[float], float], wanted: float, start: Scale, lowest: float, highest: float
) -> Scale:
    """The scale of a wanted N_eff, which is known at every log eps between the given ends."""

    def excess_at(place: float) -> float:
        return math.log(size_at(place) / wanted)

    below, above = lowest, highest  # the root lies between them
    place, excess, slope, moved = math.log(start.eps), math.inf, start.slope, 0.0
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
        return Scale(math.exp(place), slope)
    if below == lowest and excess_at(lowest) >= -_TOLERANCE:
        return Scale(0.0)
    while place - below > _EDGE:
        middle = (below + place) / 2
        below, place = (middle, place) if excess_at(middle) < -_TOLERANCE else (below, middle)
    return Scale(math.exp(place), slope)
