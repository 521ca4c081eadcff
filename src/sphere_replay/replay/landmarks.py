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
from sphere_replay.geometry import Geometry, build_geometry
from sphere_replay.geometry.threads import undisturbed
from sphere_replay.numeric import accumulation_dtype, median
from sphere_replay.scoring import Scores


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
    return undisturbed(work, len(features), features.device)


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
    known = torch.zeros_like(precise)
    known[landmarks] = 1.0
    magnitude = precise[landmarks].abs().max().clamp(min=torch.finfo(precise.dtype).tiny)
    values = torch.zeros_like(precise)
    values[landmarks] = precise[landmarks] / magnitude
    total, mass = geometry.apply_kernel(eps, torch.stack([values, known], dim=1)).unbind(1)
    squares = geometry.apply_kernel(eps / 2, known)  # the kernel at half the scale is its square
    reached = (mass > 0) & (squares > 0)
    averaged = torch.where(reached, total / mass, values[landmarks].mean())
    carried = averaged * magnitude
    carried[landmarks] = precise[landmarks]
    return carried.to(increments.dtype), torch.where(reached, mass.square() / squares, 0.0)
