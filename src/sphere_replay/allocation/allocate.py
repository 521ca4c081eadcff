"""Algorithm 1, lines 4 to 8: increments and features in, replay weights out."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

from sphere_replay.allocation.backing import (
    Strength,
    back_labels,
    check_labels,
    noise_strength,
    permuted_within_classes,
)
from sphere_replay.allocation.certificate import Trace, certify, warn_if_poor
from sphere_replay.allocation.controls import (
    Control,
    matching_temperature,
    normalized,
    softmax,
    softmax_sensitivity,
)
from sphere_replay.allocation.recipe import Sphere
from sphere_replay.allocation.result import Allocation
from sphere_replay.allocation.smoothing import (
    IdentitySmoother,
    KernelSmoother,
    LeaveOneOutSmoother,
    Smoother,
)
from sphere_replay.allocation.transport import transport
from sphere_replay.geometry import Geometry, Kept, PermutedGeometry, build_geometry, exact_rows
from sphere_replay.geometry.build import DEFAULT_BUDGET, Kind
from sphere_replay.geometry.threads import undisturbed
from sphere_replay.numeric import accumulation_dtype, as_probabilities
from sphere_replay.validation import check_increments

SMALLEST_INCREMENT = 1e-290
"""Smaller ones count as zero: what is made of them (averages, temperatures) would lose its digits
where numbers end."""

LARGEST_TEMPERATURE = 1e300
"""Of policies that take theirs from increments; the value is T times a logarithm, and finite."""

SHARPEST = 1e4
"""Roundings of the largest support: the lowest temperature that is matched to an ESS."""


def allocate(
    increments: Tensor,
    features: Tensor | Geometry,
    recipe: Sphere | None = None,
    *,
    labels: Tensor | None = None,
    running_scale: float | None = None,
    grouping: Kept | None = None,
    generator: torch.Generator | None = None,
    budget: int = DEFAULT_BUDGET,
    geometry: Kind | str = Kind.AUTO,
) -> Allocation:
    """Turn loss increments into replay weights, asking each memory's neighbours first.

    Args:
        increments: δ `[m]`, each memory's loss after the virtual step minus before.
        features: h `[m, d]`, each memory's representation; or, with the `Precomputed` distance, the
            cost matrix `[m, m]`; or a ready `Geometry`, which is then used as it is.
        recipe: Distance, scales and blend; `Sphere.vision()` unless given.
        labels: Stored class numbers, int64 `[m]`, for recipes with agreement > 0. With others they
            change nothing but are reported on: `Allocation.backing` and `label_noise`.
        running_scale: `Allocation.running_scale` of the previous rescoring, for scale policies with
            a memory (vision). None starts afresh.
        grouping: `Allocation.grouping` of the previous rescoring, for more memories than are exact:
            those whose features are the same to the last bit, as a frozen encoder gives them, stay
            together, and less is searched for.
        generator: Source of the shuffle of the `permuted` and `backing-permuted` controls; used by
            nothing else.
        budget: Bytes that distances may occupy; beyond it they are recomputed tile by tile.
        geometry: `auto` is exact up to `EXACT_UP_TO` memories and approximate beyond, with a bound
            on what that changes in `Allocation.error` and a warning where it is poor; `exact` is
            exact at any size. See `Kind`.

    Returns:
        The allocation. If no consensus is positive, or the temperature is zero, nothing is
        supported: sensitivities are 0, probabilities uniform and the mass is 1 - alpha. Backing
        then multiplies these weights like any others.

    Raises:
        ValueError: for shapes that do not match or values that are not finite, naming the first.
    """
    recipe = Sphere.vision() if recipe is None else recipe
    if not isinstance(recipe, Sphere):
        raise TypeError(f"recipe must be a Sphere, such as Sphere.vision(), got {recipe!r}")
    delta = check_increments(increments)
    if labels is not None:
        labels = check_labels(labels, len(delta))
    elif recipe.agreement > 0:
        raise ValueError(
            "agreement > 0 lets neighbours vote on labels: pass labels=..., one int64 class number "
            "per memory, or set agreement=0"
        )
    if not isinstance(features, Tensor | Geometry):
        raise TypeError(
            f"features must be a torch.Tensor or a Geometry, got {type(features).__name__}"
        )
    if not isinstance(grouping, Kept | None):
        raise TypeError(
            f"grouping must be the grouping of an earlier allocation, or None, "
            f"got {type(grouping).__name__}"
        )
    if running_scale is not None and not 0 <= running_scale < float("inf"):
        raise ValueError(
            f"running_scale must be finite and not negative, got {running_scale}; pass the "
            "running_scale of the previous allocation, or None"
        )
    if isinstance(features, Tensor) and features.ndim > 0 and len(features) != len(delta):
        raise ValueError(
            f"{len(delta)} increments but {len(features)} feature rows: both need one per memory"
        )

    def work() -> Allocation:
        places = (
            build_geometry(features, recipe.distance, budget=budget, kind=geometry, before=grouping)
            if isinstance(features, Tensor)
            else features
        )
        return _allocated(delta, places, recipe, labels, running_scale, generator)

    dim = features.shape[-1] if isinstance(features, Tensor) and features.ndim == 2 else 0
    result = undisturbed(work, len(delta), features.device, dim=dim)
    if isinstance(features, Tensor):  # else somebody else has chosen how
        warn_if_poor(result)
    return result


def _allocated(
    increments: Tensor,
    geometry: Geometry,
    recipe: Sphere,
    labels: Tensor | None,
    running_scale: float | None,
    generator: torch.Generator | None,
) -> Allocation:
    if geometry.size != len(increments):
        raise ValueError(f"{len(increments)} increments but a geometry of {geometry.size} memories")
    delta = increments.to(geometry.device, accumulation_dtype(geometry.device))
    delta = hardshrink(delta, SMALLEST_INCREMENT)
    if recipe.control is Control.PERMUTED:
        geometry = _shuffled(geometry, recipe, generator)
    precision = torch.promote_types(increments.dtype, torch.float32)
    rounding = max(torch.finfo(precision).eps, torch.finfo(geometry.dtype).eps)
    result, trace = solve(delta, geometry, recipe, running_scale, rounding)
    if labels is not None:
        labels = labels.to(geometry.device)
        result = _with_backing(result, geometry, labels, recipe, generator)
    result = replace(result, error=certify(result, trace, delta, geometry, recipe, labels))
    return result.to(precision)


def solve(
    delta: Tensor,
    geometry: Geometry,
    recipe: Sphere,
    running_scale: float | None = None,
    rounding: float = 0.0,
) -> tuple[Allocation, Trace]:
    """The allocation before labels have a say, of increments in the geometry's precision."""
    alone = recipe.control is Control.IDENTITY
    eps_s, eps_t = recipe.scales.bandwidths(geometry)
    smoother = _smoother(recipe, geometry, eps_s, rounding)
    consensus = smoother.average(delta)
    approximate = exact_rows(geometry) is not None
    if approximate:  # an average lies among what it averages, whatever the kernel is off by
        consensus = consensus.clamp(delta.min(), delta.max())
    support = consensus.clamp(min=0)
    temperature, scale = recipe.scales.temperature(delta, support, eps_t, running_scale)
    temperature = min(temperature, LARGEST_TEMPERATURE)
    target, value, log_reached = transport(geometry, eps_t, temperature, support)
    if approximate:
        target = _of_mass(target, 1.0)
    if temperature == 0:
        sensitivity = torch.zeros_like(delta)
    else:
        passed = target * (consensus > 0)
        sensitivity = smoother.pull_back(passed)
        if approximate:
            sensitivity = _of_mass(sensitivity, float(passed.sum()))
    alpha = 1.0 if recipe.control is Control.NO_FLOOR else recipe.alpha
    weights, mass, probabilities = _blend(sensitivity, alpha)
    full = Allocation(
        weights=weights,
        mass=mass,
        probabilities=probabilities,
        consensus=consensus,
        support=support,
        target=target,
        sensitivity=sensitivity,
        value=value,
        eps_s=eps_s,
        eps_t=eps_t,
        temperature=temperature,
        running_scale=scale,
        geometry=None if alone else geometry,
    )
    trace = Trace(smoother.row_sums, log_reached)
    match recipe.control:
        case Control.CONSENSUS:
            full = _with_softmax(full, smoother, alpha, rounding)
        case Control.NO_TRANSPORT:
            full = _with_sensitivity(full, normalized(support), alpha)
        case Control.MATCHED_MIR:
            full = _with_matched_mir(full, delta)
    return full, trace


def _of_mass(values: Tensor, mass: float) -> Tensor:
    """Transport and S^T lose nothing; approximate kernels do, a little, and all alike."""
    total = float(values.sum())
    return values * (mass / total) if total > 0 else values


def _smoother(recipe: Sphere, geometry: Geometry, eps_s: float, rounding: float) -> Smoother:
    if recipe.control is Control.IDENTITY:
        return IdentitySmoother()
    kind = LeaveOneOutSmoother if recipe.leave_one_out else KernelSmoother
    return kind(geometry, eps_s, rounding)


def _blend(sensitivity: Tensor, alpha: float) -> tuple[Tensor, float, Tensor]:
    """w̄ = (1 - alpha)/m + alpha w_SC, its mass s_w and p = w̄ / s_w (uniform if s_w = 0)."""
    size = len(sensitivity)
    weights = (1 - alpha) / size + alpha * sensitivity
    total = float(weights.sum())
    if total == 0:
        return weights, 0.0, torch.full_like(weights, 1 / size)
    # The mass lies in [1 - alpha, 1]; only rounding can take the sum out of it.
    return weights, min(max(total, 1 - alpha), 1.0), weights / total


def _with_sensitivity(full: Allocation, sensitivity: Tensor, alpha: float) -> Allocation:
    weights, mass, probabilities = _blend(sensitivity, alpha)
    return replace(
        full, sensitivity=sensitivity, weights=weights, mass=mass, probabilities=probabilities
    )


def _with_softmax(
    full: Allocation, smoother: Smoother, alpha: float, rounding: float
) -> Allocation:
    risk = float(full.support.max())
    if risk == 0:
        return full

    def sensitivity(temperature: float) -> Tensor:
        return softmax_sensitivity(smoother, full.consensus, temperature)

    temperature = matching_temperature(
        lambda t: _blend(sensitivity(t), alpha)[2], full.effective_sample_size, scale=risk
    )
    # Below, it would tell supports apart that differ by the rounding of the kernel.
    temperature = max(temperature, risk * SHARPEST * rounding)
    return _with_sensitivity(full, sensitivity(temperature), alpha)


def _with_matched_mir(full: Allocation, delta: Tensor) -> Allocation:
    risk = delta.clamp(min=0)
    scale = float(risk.max())
    if scale == 0:
        return _with_sensitivity(full, torch.full_like(delta, 1 / len(delta)), alpha=1.0)
    temperature = matching_temperature(
        lambda t: softmax(risk, t), full.effective_sample_size, scale=scale
    )
    return _with_sensitivity(full, softmax(risk, temperature), alpha=1.0)


def _with_backing(
    full: Allocation,
    geometry: Geometry,
    labels: Tensor,
    recipe: Sphere,
    generator: torch.Generator | None,
) -> Allocation:
    """w̄ ⊙ (1 - a + a backing), in every control: what these replace, they replace before."""
    backing = back_labels(geometry, full.eps_s, labels, recipe.votes)
    shares, noise = backing.shares, backing.label_noise
    if recipe.control is Control.BACKING_PERMUTED:
        shares = permuted_within_classes(shares, labels, _given(generator, recipe, "backing"))
    a = recipe.agreement * (noise_strength(noise) if recipe.strength is Strength.NOISE else 1.0)
    reported = replace(full, backing=shares, label_noise=noise, agreement=a, votes=recipe.votes)
    if a == 0:
        return reported
    weights = full.weights * (1 - a + a * shares)
    return replace(
        reported,
        weights=weights,
        mass=min(float(weights.sum()), full.mass),
        probabilities=as_probabilities(weights),
    )


def _shuffled(geometry: Geometry, recipe: Sphere, generator: torch.Generator | None) -> Geometry:
    generator = _given(generator, recipe, "feature rows")
    places = torch.randperm(geometry.size, generator=generator, device=generator.device)
    return PermutedGeometry(geometry, places)


def _given(generator: torch.Generator | None, recipe: Sphere, what: str) -> torch.Generator:
    if generator is None:
        raise ValueError(
            f"the {recipe.control} control shuffles {what}: pass generator=torch.Generator()"
        )
    return generator
