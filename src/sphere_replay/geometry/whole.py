"""The geometry of a small memory: C in one piece, and with it every kernel that was asked for.

With 500 memories half of an allocation would be handing work out and putting it together again: so
there is one tile, and one thread but for products of long features; nothing is computed twice.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sphere_replay.geometry.order import smallest
from sphere_replay.geometry.scratch import Lender
from sphere_replay.geometry.sources import CostSource
from sphere_replay.geometry.tiles import TileGeometry

_KEPT = 4
"""Kernels: those of two scales, with and without their diagonals."""


class WholeGeometry(TileGeometry):
    """A single tile, which is kept like the kernels made of it."""

    def __init__(self, source: CostSource) -> None:
        super().__init__(source)
        self._tile = source.size
        self._kernels: dict[tuple[float, bool], Tensor] = {}
        self._lender = Lender()

    def apply_kernel(self, eps: float, vectors: Tensor, *, others_only: bool = False) -> Tensor:
        """exp(-C/eps) @ vectors, for vectors `[m]` or `[m, p]`."""
        self._sharpen(eps)
        kernel = self._kernel_at(eps, others_only=others_only)
        values = vectors.to(self.dtype)
        # K is symmetric, and a few rows times K are faster than K times a few columns.
        products = values @ kernel if values.ndim == 1 else (values.T.contiguous() @ kernel).T
        return products.to(self._vector_dtype)

    def neighbor_radius(self, neighbors: Sequence[int]) -> Tensor:
        """`[len(neighbors), m]`: distance to the k-th nearest other memory, k clamped to m - 1."""
        columns = [min(k, self.size - 1) for k in neighbors]
        while True:
            self._fill()
            nearest = smallest(self._kept[0, 0], max(columns) + 1)
            # Radii are what kernel scales are made of: they must be as sharp as those scales.
            if not self._sharpen(float(nearest[:, min(columns)].median()) / self.unit):
                found = torch.stack([nearest[:, k] for k in columns])
                return found.to(self._vector_dtype) / self.unit

    def _fill(self) -> None:
        if not self._filled:
            whole = slice(0, self.size)
            self._kept[0, 0] = self._source.block(whole, whole, self._memory())
            self._filled = True

    def _memory(self) -> Tensor:
        return self._lender.tensor((self.size, self.size), self.dtype, self.device)

    def _kernel(self, distances: Tensor, eps: float) -> Tensor:
        return self._kernel_at(eps)

    def _kernel_at(self, eps: float, *, others_only: bool = False) -> Tensor:
        """exp(-C/eps), without its diagonal if so asked; not to be written to."""
        key = eps * self.unit, others_only
        if (kept := self._kernels.get(key)) is not None:
            return kept
        self._fill()
        costs, keep = self._kept[0, 0], len(self._kernels) < _KEPT
        memory = self._memory() if keep else torch.empty_like(costs)
        if others_only:
            kernel = self._reaching(memory.copy_(self._kernel_at(eps)), eps).fill_diagonal_(0)
        else:
            kernel = self._exponential(costs, eps, memory)
        if keep:
            self._kernels[key] = kernel
        return kernel

    def _pairs_of_rank(self, ranks: Sequence[int]) -> list[float]:
        (values,) = self._pair_values()
        return values.sort().values[list(ranks)].tolist()

    def _forget(self) -> None:
        super()._forget()
        self._kernels.clear()
