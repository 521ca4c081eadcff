"""What the allocation asks of a geometry: kernel products, radii and scales, a median distance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Neighborhood:
    """Shape of every row of S = K / K1 at one kernel scale, each field a `[m]` vector."""

    mass: Tensor
    """Σ_j K_ij, at least 1 because K_ii = 1."""
    effective_size: Tensor
    """N_eff = (Σ_j K_ij)² / Σ_j K_ij²: how many memories really take part in the average."""
    radius: Tensor
    """r_i = Σ_j S_ij C_ij: the mean distance of those that do."""


@runtime_checkable
class Geometry(Protocol):
    """Pairwise costs C `[m, m]`: symmetric, not negative, zero diagonal; maybe never held."""

    @property
    def size(self) -> int:
        """Number of memories m."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which kernels are evaluated."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the products are computed."""
        ...

    def apply_kernel(self, eps: float, vectors: Tensor, *, others_only: bool = False) -> Tensor:
        """exp(-C/eps) @ vectors, for vectors `[m]` or `[m, p]`.

        With `others_only` without the diagonal, and exactly so: a memory that is out of everyone's
        reach (its kernel entries underflow) gets zeros.
        """
        ...

    def apply_log_kernel(self, eps: float, log_vector: Tensor) -> Tensor:
        """log(exp(-C/eps) @ exp(log_vector)) for `[m]`, without ever leaving the log domain."""
        ...

    def log_transport(self, eps: float, log_vector: Tensor) -> tuple[Tensor, Tensor]:
        """Target a ⊙ E(1/Z)/m and log Z for log a `[m]` of any size; E = exp(-C/eps), Z = E a."""
        ...

    def neighborhood(self, eps: float) -> Neighborhood:
        """Mass, effective size and radius of every neighbourhood of exp(-C/eps)."""
        ...

    def neighbor_radius(self, neighbors: Sequence[int]) -> Tensor:
        """`[len(neighbors), m]`: distance to the k-th nearest other memory, k clamped to m - 1.

        Approximate geometries tell it of a sample of memories, `[len(neighbors), n]`.
        """
        ...

    def kernel_scales(self, neighbors: Sequence[float]) -> list[float]:
        """For each wanted number the eps at which it is the median N_eff of a sample of memories.

        0 if coincident memories alone are as many; if all m are too few, an eps at which they count
        alike.
        """
        ...

    def median_distance(self) -> float:
        """Median of C_kl over pairs k < l; over distinct pairs if most coincide; 0 if all do."""
        ...


@runtime_checkable
class Approximate(Protocol):
    """A geometry whose kernel products are not exact, but which knows exact costs."""

    @property
    def order(self) -> Tensor:
        """All memories in an order that suits the geometry, `[m]`."""
        ...

    def costs(self, memories: Tensor, part: slice) -> Tensor:
        """C[memories, order[part]] `[n, k]`, exactly."""
        ...
