"""The row-stochastic S that averages increments over neighbours, and its transpose.

S_ij = K_ij / Σ_k K_ik with K = exp(-C/eps_s). S aggregates (consensus = Sδ); its transpose hands a
sensitivity back to the memories that contributed to it. Leaving one out (not in the paper), a
memory is no neighbour of its own: K has no diagonal.

Where increments cancel, what is left of them is rounding, and its sign depends on the order of a
sum. An average that is not larger than its rounding error is therefore zero.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from sphere_replay.geometry import Geometry

ROUNDINGS = 4
"""Of the averaged magnitudes: what kernel products of increments that cancel leave at most."""


_MANY = 1 << 13
"""Memories from which on some averages will be in doubt, and another pass takes long: a product for
these is made with the others."""


class Smoother(Protocol):
    """A row-stochastic operator on `[m]` vectors."""

    @property
    def row_sums(self) -> Tensor | None:
        """K 1 `[m]`, zero for who stands alone; None before an average or without a kernel."""
        ...

    def average(self, values: Tensor) -> Tensor:
        """S values."""
        ...

    def pull_back(self, values: Tensor) -> Tensor:
        """S^T values."""
        ...


class KernelSmoother:
    """S of a geometry at scale eps. The row sums come with the first average, at no extra pass.

    `rounding` is that of the kernel or of the values, whichever is coarser.
    """

    def __init__(self, geometry: Geometry, eps: float, rounding: float = 0.0) -> None:
        self._geometry = geometry
        self._eps = eps
        self._rounding = ROUNDINGS * rounding
        self._row_sums: Tensor | None = None

    @property
    def row_sums(self) -> Tensor | None:
        """K 1."""
        return self._row_sums

    def average(self, values: Tensor) -> Tensor:
        """S values = K values / K 1, for values of any magnitude."""
        magnitude = float(values.abs().max())
        if magnitude == 0:
            return values.clone()
        scaled = values / magnitude
        stacked = [scaled, torch.ones_like(scaled)]
        if len(values) > _MANY:
            stacked.append(scaled.abs())
        products = self._geometry.apply_kernel(self._eps, torch.stack(stacked, dim=1))
        self._row_sums = row_sums = products[:, 1]

        def of_magnitudes() -> Tensor:
            if len(stacked) == 3:
                return products[:, 2] / row_sums
            return self._geometry.apply_kernel(self._eps, scaled.abs()) / row_sums

        averaged = products[:, 0] / row_sums
        return _without_rounding(averaged, of_magnitudes, self._rounding) * magnitude

    def pull_back(self, values: Tensor) -> Tensor:
        """S^T values = K (values / K 1), because K is symmetric."""
        if self._row_sums is None:
            self._row_sums = self._geometry.apply_kernel(self._eps, values.new_ones(len(values)))
        return self._geometry.apply_kernel(self._eps, values / self._row_sums)


class LeaveOneOutSmoother:
    """S of a geometry at scale eps, without the memory itself; who has no neighbour stands alone.

    With r = K 1 over the others, a row of S is K/r where r > 0 and that of the identity elsewhere.
    """

    def __init__(self, geometry: Geometry, eps: float, rounding: float = 0.0) -> None:
        self._geometry = geometry
        self._eps = eps
        self._rounding = ROUNDINGS * rounding
        row_sums = self._apply(torch.ones(geometry.size, device=geometry.device))
        self._alone = row_sums == 0
        self._row_sums = row_sums.masked_fill(self._alone, 1.0)

    @property
    def row_sums(self) -> Tensor | None:
        """K 1 over the others."""
        return self._row_sums.masked_fill(self._alone, 0.0)

    def average(self, values: Tensor) -> Tensor:
        """S values, for values of any magnitude."""
        magnitude = values.abs().max()
        if magnitude == 0:
            return values.clone()
        scaled = values / magnitude
        averaged = _without_rounding(
            self._apply(scaled) / self._row_sums,
            lambda: self._apply(scaled.abs()) / self._row_sums,
            self._rounding,
        )
        return torch.where(self._alone, values, averaged * magnitude)

    def pull_back(self, values: Tensor) -> Tensor:
        """S^T values = K (values/r), and their own for those who stand alone."""
        shared = self._apply((values / self._row_sums).masked_fill(self._alone, 0.0))
        return shared + values.masked_fill(~self._alone, 0.0)

    def _apply(self, values: Tensor) -> Tensor:
        return self._geometry.apply_kernel(self._eps, values, others_only=True)


class IdentitySmoother:
    """S = I: every memory stands alone."""

    row_sums = None

    def average(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def pull_back(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values


def _without_rounding(
    averaged: Tensor, of_magnitudes: Callable[[], Tensor], rounding: float
) -> Tensor:
    """Averages of values within [-1, 1], zero where they are mere rounding.

    The error of an average is relative to that of the magnitudes, which is asked for only where an
    average is small enough to be doubted: it costs a kernel product.
    """
    sizes = averaged.abs()
    if float(sizes.min()) > rounding or not bool(((sizes <= rounding) & (averaged != 0)).any()):
        return averaged
    return averaged.masked_fill(sizes <= rounding * of_magnitudes(), 0.0)
