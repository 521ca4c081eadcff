"""The row-stochastic S that averages increments over neighbours, and its transpose.

S_ij = K_ij / Σ_k K_ik with K = exp(-C/eps_s). S aggregates (consensus = Sδ); its transpose hands a
sensitivity back to the memories that contributed to it. Leaving one out (not in the paper), a
memory is no neighbour of its own: K has no diagonal.
"""

from typing import Protocol

import torch
from torch import Tensor

from sphere_replay.geometry import Geometry


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
    """S of a geometry at scale eps. The row sums come with the first average, at no extra pass."""

    def __init__(self, geometry: Geometry, eps: float) -> None:
        self._geometry = geometry
        self._eps = eps
        self._row_sums: Tensor | None = None

    @property
    def row_sums(self) -> Tensor | None:
        """K 1."""
        return self._row_sums

    def average(self, values: Tensor) -> Tensor:
        """S values = K values / K 1, for values of any magnitude."""
        magnitude = values.abs().max()
        if magnitude == 0:
            return values.clone()
        stacked = (values / magnitude).new_ones(len(values), 2)
        stacked[:, 0] = values / magnitude
        products = self._geometry.apply_kernel(self._eps, stacked)
        self._row_sums = products[:, 1]
        return products[:, 0] / products[:, 1] * magnitude

    def pull_back(self, values: Tensor) -> Tensor:
        """S^T values = K (values / K 1), because K is symmetric."""
        if self._row_sums is None:
            self._row_sums = self._geometry.apply_kernel(self._eps, values.new_ones(len(values)))
        return self._geometry.apply_kernel(self._eps, values / self._row_sums)


class LeaveOneOutSmoother:
    """S of a geometry at scale eps, without the memory itself; who has no neighbour stands alone.

    With r = K 1 over the others, a row of S is K/r where r > 0 and that of the identity elsewhere.
    """

    def __init__(self, geometry: Geometry, eps: float) -> None:
        self._geometry = geometry
        self._eps = eps
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
        averaged = self._apply(values / magnitude) / self._row_sums * magnitude
        return torch.where(self._alone, values, averaged)

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
