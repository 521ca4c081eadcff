"""A geometry whose feature rows were dealt out to the wrong memories: the `permuted` control."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from sphere_replay.geometry.approximate import ApproximateGeometry
from sphere_replay.geometry.neighbors import Kept
from sphere_replay.geometry.protocol import Approximate, Geometry, Neighborhood


class ExactRows(NamedTuple):
    """See `Approximate`."""

    order: Tensor
    costs: Callable[[Tensor, slice], Tensor]


class PermutedGeometry:
    """Memory i sits where `base` has memory `places[i]`."""

    def __init__(self, base: Geometry, places: Tensor) -> None:
        self._base = base
        self._places = places.to(base.device)
        self._occupants = self._places.argsort()

    @property
    def size(self) -> int:
        """Number of memories m."""
        return self._base.size

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which kernels are evaluated."""
        return self._base.dtype

    @property
    def device(self) -> torch.device:
        """Where the products are computed."""
        return self._base.device

    def apply_kernel(self, eps: float, vectors: Tensor, *, others_only: bool = False) -> Tensor:
        """exp(-C/eps) @ vectors, for vectors `[m]` or `[m, p]`."""
        moved = vectors[self._occupants]
        return self._base.apply_kernel(eps, moved, others_only=others_only)[self._places]

    def apply_log_kernel(self, eps: float, log_vector: Tensor) -> Tensor:
        """log(exp(-C/eps) @ exp(log_vector)) for `[m]`."""
        return self._base.apply_log_kernel(eps, log_vector[self._occupants])[self._places]

    def log_transport(self, eps: float, log_vector: Tensor) -> tuple[Tensor, Tensor]:
        """Target a ⊙ E(1/Z)/m and log Z for log a `[m]` of any size; E = exp(-C/eps), Z = E a."""
        target, log_reached = self._base.log_transport(eps, log_vector[self._occupants])
        return target[self._places], log_reached[self._places]

    def neighborhood(self, eps: float) -> Neighborhood:
        """Mass, effective size and radius of every neighbourhood of exp(-C/eps)."""
        base = self._base.neighborhood(eps)
        return Neighborhood(
            base.mass[self._places], base.effective_size[self._places], base.radius[self._places]
        )

    def neighbor_radius(self, neighbors: Sequence[int]) -> Tensor:
        """`[len(neighbors), m]`: distance to the k-th nearest other memory, k clamped to m - 1."""
        radius = self._base.neighbor_radius(neighbors)
        # A sample of memories is one of places, whoever sits there.
        return radius[:, self._places] if radius.shape[1] == self.size else radius

    def kernel_scales(self, neighbors: Sequence[float]) -> list[float]:
        """For each wanted number the eps at which it is the median N_eff: those of the base."""
        return self._base.kernel_scales(neighbors)

    def median_distance(self) -> float:
        """Median of C_kl over pairs k < l."""
        return self._base.median_distance()

    @property
    def kept(self) -> Kept | None:
        """What the base leaves to the next geometry, if it is approximate."""
        return self._base.kept if isinstance(self._base, ApproximateGeometry) else None

    def explained(self) -> str:
        """How the base has applied its kernels, if it is approximate."""
        return self._base.explained() if isinstance(self._base, ApproximateGeometry) else ""

    def exact_rows(self) -> ExactRows | None:
        """See the function of this name."""
        base = exact_rows(self._base)
        if base is None:
            return None
        return ExactRows(
            self._occupants[base.order],
            lambda memories, part: base.costs(self._places[memories], part),
        )

    def sums_by_class(
        self, eps: float, belongs: Tensor, count: int
    ) -> Iterator[tuple[Tensor, Tensor]] | None:
        """See the function of this name."""
        base = sums_by_class(self._base, eps, belongs[self._occupants], count)
        return None if base is None else ((self._occupants[who], sums) for who, sums in base)


def sums_by_class(
    geometry: Geometry, eps: float, belongs: Tensor, count: int
) -> Iterator[tuple[Tensor, Tensor]] | None:
    """Those of `ApproximateGeometry`, from a geometry that has them; None from others."""
    known = getattr(geometry, "sums_by_class", None)
    return None if known is None else known(eps, belongs, count)


def exact_rows(geometry: Geometry) -> ExactRows | None:
    """Those of an approximate geometry; None for one that is exact as it is."""
    if isinstance(geometry, PermutedGeometry):
        return geometry.exact_rows()
    # To ask whether it is an `Approximate` would take as long as a product of a small memory.
    costs = getattr(geometry, "costs", None)
    return None if costs is None else ExactRows(cast(Approximate, geometry).order, costs)
