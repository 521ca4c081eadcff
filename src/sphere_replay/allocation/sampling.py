"""Drawing memories by their weights, and the coefficients that make the drawn sum honest."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sphere_replay.allocation.urn import SPARE, Urn, draw_of_all, first_of_each
from sphere_replay.numeric import accumulation_dtype, as_probabilities
from sphere_replay.validation import Choice

LARGE = 1 << 16
"""Memories beyond which draws search cumulated sums: shuffles and heaps of all take too long."""


class Scheme(Choice):
    """How memories are drawn. The drawn sum is Σ_r coefficient_r * loss_r."""

    REPLACEMENT = "replacement"
    """Independent draws from p, coefficient s_w/b: unbiased (Algorithm 1, lines 9 and 10)."""
    SUCCESSIVE = "successive"
    """Distinct memories, one after the other from what is left of p, coefficient s_w/b: what the
    paper reports for vision; not unbiased unless p is uniform."""
    SYSTEMATIC = "systematic"
    """Distinct memories with exactly the inclusion probabilities π_i = min(1, c w̄_i), coefficient
    w̄_i/π_i: unbiased, and a memory is never replayed twice."""


@dataclass(frozen=True)
class Sample:
    """Drawn memories: `indices` `[b]` and the `coefficients` `[b]` of their losses."""

    indices: Tensor
    coefficients: Tensor


def sample(
    weights: Tensor, count: int, scheme: Scheme, generator: torch.Generator | None = None
) -> Sample:
    """Draw `count` memories by non-negative `weights` `[m]`."""
    precise = weights.to(accumulation_dtype(weights.device))
    mass = precise.sum()
    if scheme is Scheme.SYSTEMATIC:
        inclusion = inclusion_probabilities(precise, count)
        indices = _draw_systematic(inclusion, count, generator)
        coefficients = precise[indices] / inclusion[indices]
    else:
        indices = draw(as_probabilities(precise), count, scheme, generator)
        coefficients = (mass / count).expand(count)
    return Sample(indices, coefficients.to(weights.dtype))


def draw(
    probabilities: Tensor, count: int, scheme: Scheme, generator: torch.Generator | None = None
) -> Tensor:
    """Indices `[count]`. Fewer likely memories than asked for: the rest is filled up uniformly."""
    distinct = scheme is not Scheme.REPLACEMENT
    _check_count(count, len(probabilities), distinct=distinct)
    if scheme is Scheme.SYSTEMATIC:
        inclusion = inclusion_probabilities(probabilities, count)
        return _draw_systematic(inclusion, count, generator)
    if len(probabilities) > LARGE:
        return Urn(probabilities).draw(count, distinct=distinct, generator=generator)
    return draw_of_all(probabilities, count, distinct=distinct, generator=generator)


def draw_distinct(size: int, count: int, generator: torch.Generator | None = None) -> Tensor:
    """`count` distinct numbers below `size`, uniformly and in random order; all if few."""
    if size > LARGE and 2 * count < size:
        found = torch.randint(size, (2 * count + SPARE,), generator=generator, device="cpu")
        found = first_of_each(found)[:count]
        if len(found) == count:
            return found
    return torch.randperm(size, generator=generator, device="cpu")[:count]


def inclusion_probabilities(weights: Tensor, count: int) -> Tensor:
    """π_i = min(1, c w_i) with c such that Σ π_i = count; `[m]`.

    Where fewer than `count` weights are positive, those are certain and the others share the rest.
    """
    _check_count(count, len(weights), distinct=True)
    likely = int((weights > 0).sum())
    if likely <= count:
        filling = (count - likely) / max(1, len(weights) - likely)
        return torch.full_like(weights, filling).masked_fill_(weights > 0, 1.0)
    ordered, order = weights.sort(descending=True)
    # Memory k (in falling order) is certain if, with all larger ones certain, its share reaches 1.
    tail = ordered.flip(0).cumsum(0).flip(0)
    remaining = count - torch.arange(len(weights), device=weights.device)
    certain = int((remaining * ordered >= tail)[:count].cumprod(0).sum())
    probabilities = torch.empty_like(weights)
    probabilities[order[:certain]] = 1.0
    probabilities[order[certain:]] = ordered[certain:] * ((count - certain) / tail[certain])
    return probabilities.clamp(max=1.0)


def _draw_systematic(inclusion: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """One uniform offset, then every whole step along the cumulated probabilities.

    The order is shuffled first, so that which memories appear together does not depend on where
    they are stored.
    """
    certain = (inclusion >= 1).nonzero()[:, 0]
    open_places = count - len(certain)
    if open_places == 0:
        return certain
    uncertain = (inclusion < 1).nonzero()[:, 0]
    shuffle = torch.randperm(len(uncertain), generator=generator, device=inclusion.device)
    uncertain = uncertain[shuffle]
    cumulated = inclusion[uncertain].cumsum(0)
    offset = torch.rand((), generator=generator, dtype=cumulated.dtype, device=cumulated.device)
    steps = torch.arange(open_places, device=cumulated.device) + offset
    points = steps * (cumulated[-1] / open_places)
    chosen = torch.searchsorted(cumulated, points, right=True).clamp(max=len(uncertain) - 1)
    return torch.cat([certain, uncertain[chosen]])


def _check_count(count: int, size: int, *, distinct: bool) -> None:
    if count < 1:
        raise ValueError(f"draw at least one memory, not {count}")
    if distinct and count > size:
        raise ValueError(
            f"cannot draw {count} distinct memories from {size}; draw fewer or with replacement"
        )
