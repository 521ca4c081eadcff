"""Increments of a few landmarks, carried to all other memories by the kernel.

Consensus is a kernel average anyway, so an average over landmarks alone estimates what is not
known: with the kernel E = exp(-C/eps_T) of the transport, which reaches further than that of the
consensus,

    δ_i ≈ Σ_{l ∈ landmarks} E_il δ_l / Σ_{l ∈ landmarks} E_il

How many landmarks really take part in it, N_eff = (Σ E_il)² / Σ E_il², says how far to trust it.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sphere_replay.allocation import Sphere
from sphere_replay.allocation.scales import Scales, Temperature
from sphere_replay.geometry import ExactRows, Geometry, build_geometry, exact_rows
from sphere_replay.geometry.kernels import kernel_of
from sphere_replay.geometry.threads import in_order, slices, undisturbed
from sphere_replay.numeric import accumulation_dtype, median
from sphere_replay.scoring import Scores

_PLACES_AT_ONCE = 1 << 13
"""Memories whose costs to all landmarks are held."""


@dataclass(frozen=True)
class Carried:
    """What to allocate by."""

    increments: Tensor
    """δ `[m]`, found at the landmarks and carried to the others."""
    features: Tensor | Geometry
    recipe: Sphere
    trust: float | None = None
    """Median N_eff among the landmarks, over the memories that are none; None: all are."""


@dataclass(frozen=True)
class _Settled:
    """Scales whose bandwidths are known already: the search for them is not repeated."""

    scales: Scales
    found: tuple[float, float]

    def bandwidths(self, geometry: Geometry) -> tuple[float, float]:
        return self.found

    def temperature(
        self, increments: Tensor, support: Tensor, eps_t: float, running_scale: float | None
    ) -> Temperature:
        return self.scales.temperature(increments, support, eps_t, running_scale)


def carry(scores: Scores, features: Tensor, recipe: Sphere) -> Carried:
    """Increments of all m memories; nothing changes where all of them are known, or none."""
    landmarks = scores.landmarks
    if landmarks is None or len(landmarks) in (0, len(scores)):
        return Carried(scores.increments, features, recipe)
    work = partial(_carry, scores, landmarks, features, recipe)
    return undisturbed(work, len(features), features.device, dim=features.shape[1])


def _carry(scores: Scores, landmarks: Tensor, features: Tensor, recipe: Sphere) -> Carried:
    geometry = build_geometry(features, recipe.distance, before=scores.grouping)
    scales = recipe.scales.bandwidths(geometry)
    increments, neighbors = carried_increments(scores.increments, landmarks, geometry, scales[1])
    others = torch.ones(len(scores), dtype=torch.bool, device=neighbors.device)
    others[landmarks] = False
    settled = replace(recipe, scales=_Settled(recipe.scales, scales))
    return Carried(increments, geometry, settled, median(neighbors[others]))


def carried_increments(
    increments: Tensor, landmarks: Tensor, geometry: Geometry, eps: float
) -> tuple[Tensor, Tensor]:
    """Increments `[m]` by the kernel of scale eps, and N_eff among the landmarks `[m]`.

    Only the landmarks' own entries of `increments` are read, and they stay as they are. A memory
    out of the reach of all landmarks gets their plain mean, and has none of them for a neighbour.
    """
    precise = increments.to(geometry.device, accumulation_dtype(geometry.device))
    given = precise[landmarks]
    magnitude = given.abs().max().clamp(min=torch.finfo(precise.dtype).tiny)
    total, mass, squares = _sums(geometry, eps, landmarks, given / magnitude).unbind(1)
    reached = (mass > 0) & (squares > 0)
    carried = torch.where(reached, magnitude * (total / mass), given.mean())
    carried[landmarks] = given
    return carried.to(increments.dtype), torch.where(reached, mass.square() / squares, 0.0)


def _sums(geometry: Geometry, eps: float, landmarks: Tensor, given: Tensor) -> Tensor:
    """Σ E_il δ_l, Σ E_il and Σ E_il² over the landmarks l, `[m, 3]`."""
    if (rows := exact_rows(geometry)) is not None:
        return _sums_of_rows(rows, eps, landmarks, given)
    vectors = given.new_zeros(geometry.size, 2)
    vectors[landmarks] = torch.stack([given, torch.ones_like(given)], dim=1)
    sums = geometry.apply_kernel(eps, vectors)
    squares = geometry.apply_kernel(eps / 2, vectors[:, 1:])  # the kernel at half the scale
    return torch.cat([sums, squares], dim=1)


def _sums_of_rows(rows: ExactRows, eps: float, landmarks: Tensor, given: Tensor) -> Tensor:
    """The same by exact costs.

    Approximate sums may each leave out others, and their quotient then leaves the range of δ.
    """
    sums = given.new_empty(len(rows.order), 3)

    def tell(part: slice) -> None:
        kernel = kernel_of(rows.costs(landmarks, part).to(given.dtype), eps)
        found = [given @ kernel, kernel.sum(dim=0), kernel.square_().sum(dim=0)]
        sums[rows.order[part]] = torch.stack(found, dim=1)

    for _ in in_order(tell, slices(len(sums), _PLACES_AT_ONCE), given.device):
        pass
    return sums
