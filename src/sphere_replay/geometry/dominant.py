"""Values so large that what little of a kernel is left out would matter: they are carried exactly.

A kernel without a thousandth of its mass serves vectors whose values are alike. Where one value is
a million times the others, as a lone spike of risk makes it, it is seen from everywhere.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.geometry.threads import in_order, slices
from sphere_replay.numeric import accumulation_dtype

_DOMINANT = 100.0
"""Times the mean size of a vector's values."""
_MOST = 64
"""Dominant values of each vector that are carried exactly: the largest."""
_AT_ONCE = 1 << 13
"""Places whose costs are held."""


class Dominant(NamedTuple):
    """The dominant values of some vectors, apart from the others."""

    others: Tensor
    """The vectors `[m, p]` without them."""
    places: Tensor
    """Where they are, `[k]`."""
    values: Tensor
    """What they are, `[k, p]`."""

    def carried(
        self, costs: Callable[[Tensor, slice], Tensor], eps: float, *, others_only: bool
    ) -> Tensor:
        """exp(-C/eps) times them, `[m, p]`, by exact costs `[k, n]` of their places to a part."""
        precise = accumulation_dtype(self.values.device)
        values = self.values.to(precise)

        def to_part(part: slice) -> Tensor:
            kernel = (costs(self.places, part).to(precise) / -eps).exp_()
            if others_only:
                own = (self.places >= part.start) & (self.places < part.stop)
                kernel[own.nonzero()[:, 0], self.places[own] - part.start] = 0.0
            return kernel.T @ values

        parts = slices(len(self.others), _AT_ONCE)
        return torch.cat(list(in_order(to_part, parts, self.others.device)))


def dominant(vectors: Tensor) -> Dominant | None:
    """The dominant values of vectors `[m, p]`, if there are any."""
    sizes = vectors.abs()
    large = sizes > _DOMINANT * sizes.mean(dim=0)
    if not bool(large.any()):
        return None
    most = sizes.topk(min(_MOST, len(sizes)), dim=0).indices
    chosen = torch.zeros_like(large).scatter_(0, most, True) & large
    places = chosen.any(dim=1).nonzero()[:, 0]
    values = torch.where(chosen[places], vectors[places], 0.0)
    return Dominant(vectors.masked_fill(chosen, 0.0), places, values)
