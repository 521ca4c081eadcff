"""Approximate kernel products of numbers that lie hundreds of logarithms apart.

The largest are carried exactly, however far. The others come in bands of magnitudes that plain
numbers can hold, a product for each; what is nothing beside what everybody has seen already is left
out.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sphere_replay.geometry.threads import in_order, slices

_LARGEST = 64
"""Logarithms that are carried exactly."""
_BAND, _BANDS_AT_ONCE = 30.0, 8
"""Logarithms that a product in plain numbers can hold, and how many products are made at once."""
_BESIDE = 40.0
"""Logarithms below which a number is less than a rounding of another."""
_PLACES_AT_ONCE = 1 << 13
"""Places that are told at a time."""


def log_product(
    log_vector: Tensor, multiply: Callable[[Tensor], Tensor], carry: Callable[[Tensor], Tensor]
) -> Tensor:
    """log(K @ exp(log_vector)), `[m]`, for a kernel K with K_ii = 1.

    Args:
        log_vector: `[m]`, of any size.
        multiply: Columns `[m, p]` by K without its diagonal.
        carry: What some memories `[k]` give to all others, as a logarithm, `[m]`.
    """
    largest = log_vector.topk(min(_LARGEST, len(log_vector))).indices
    # A memory's own part, which no approximation falls below.
    result = torch.logaddexp(log_vector, carry(largest))
    others = log_vector.index_fill(0, largest, -torch.inf)
    top = float(others.max())
    bands = ((top - others) / _BAND).floor()
    left = sorted(set(bands[bands.isfinite()].tolist()))
    while left:
        least = float(result.min()) - _BESIDE - math.log(len(result))
        some = [band for band in left[:_BANDS_AT_ONCE] if top - band * _BAND >= least]
        if not some:
            break
        del left[:_BANDS_AT_ONCE]
        high = [top - band * _BAND for band in some]
        masses = [
            torch.where(bands == band, (others - level).clamp(max=0).exp(), 0.0)
            for band, level in zip(some, high, strict=True)
        ]
        carried = multiply(torch.stack(masses, dim=1)).clamp_(min=0)
        logs = carried.log() + carried.new_tensor(high)
        result = torch.logaddexp(result, logs.logsumexp(dim=1))
    return result


def log_carried(
    costs: Callable[[Tensor, slice], Tensor], places: Tensor, given: Tensor, eps: float, size: int
) -> Tensor:
    """What some places with logarithms `given` `[k]` give to all others, `[m]`, by exact costs."""
    result = given.new_empty(size)

    def tell(part: slice) -> None:
        exponents = (costs(places, part).to(given.dtype) / -eps).add_(given[:, None])
        own = ((places >= part.start) & (places < part.stop)).nonzero()[:, 0]
        exponents[own, places[own] - part.start] = -torch.inf
        torch.logsumexp(exponents, dim=0, out=result[part])

    for _ in in_order(tell, slices(size, _PLACES_AT_ONCE), given.device):
        pass
    return result
