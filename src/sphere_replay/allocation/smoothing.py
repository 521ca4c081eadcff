"""The row-stochastic S that averages increments over neighbours, and its transpose.

S_ij = K_ij / Σ_k K_ik with K = exp(-C/eps_s). S aggregates (consensus = Sδ); its transpose hands a
sensitivity back to the memories that contributed to it.
"""

from typing import Protocol

from torch import Tensor

from sphere_replay.geometry import Geometry


class Smoother(Protocol):
    """A row-stochastic operator on `[m]` vectors."""

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


class IdentitySmoother:
    """S = I: every memory stands alone."""

    def average(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def pull_back(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values
