"""What must hold of every allocation, whatever it is given."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fuzz.cases import MATCHING, SHUFFLING, Case, make_case
from fuzz.found import Found
from sphere_replay import allocate
from sphere_replay.allocation import Allocation
from sphere_replay.allocation.controls import Control
from sphere_replay.geometry import Geometry, PermutedGeometry, build_geometry
from sphere_replay.geometry.build import DenseGeometry, Kind, TiledGeometry

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Of probabilities that should be equal, where the problem is well conditioned."""
SUM_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
_VECTORS = ("weights", "probabilities", "consensus", "support", "target", "sensitivity")
_AMPLIFIED = 30.0
"""How much more than nudged numbers another order of sums may change."""


def look(seed: int) -> Found:
    """Make the case of a number, and hold it against everything that must be true of it."""
    case = make_case(seed)
    try:
        with torch.inference_mode(seed % 7 > 0):  # faster, and it must be the same
            return _look(case, seed)
    except Exception as error:  # any: valid input has a result
        return Found([f"{type(error).__name__}: {error}"], 1)


def _look(case: Case, seed: int) -> Found:
    base = _allocated(case, case.features)
    problems = list(_unsound(base, case, exact=True))
    size = len(case.increments)
    places = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    ways: list[tuple[str, Callable[[Case], Tensor]]] = [
        ("in another order", lambda case: _reordered(case, places)),
        ("tile by tile", lambda case: _allocated(case, _tiled(case, seed)).probabilities),
        ("on permuted places", lambda case: _moved(case, places)),
    ]
    way = seed % 10
    if way == 9 and not case.costs:
        kind = list(Kind)[2 + seed // 10 % 3]
        case = replace(case, increments=_single(case.increments), features=_single(case.features))
        geometry = build_geometry(case.features, case.recipe.distance, kind=kind)
        problems += [
            f"{kind}: {problem}"
            for problem in _unsound(_allocated(case, geometry), case, exact=False)
        ]
        return Found(problems, 2)
    name, other = ways[way % 3]
    if case.recipe.control in SHUFFLING or problems:
        return Found(problems, 1)
    off = _distance(base.probabilities, other(case))
    allowed = TOLERANCE[case.precision] + _told_apart(case, base)
    count = 2
    if not off <= allowed:
        allowed += _AMPLIFIED * _conditioning(case, base.probabilities)
        count += 8
        if not off <= allowed:
            problems.append(f"{name} p moves by {off:.2g}, allowed {allowed:.2g}")
    return Found(problems, count)


def _allocated(case: Case, features: Tensor | Geometry) -> Allocation:
    generator = torch.Generator().manual_seed(0) if case.recipe.control in SHUFFLING else None
    return allocate(case.increments, features, case.recipe, labels=case.labels, generator=generator)


def _reordered(case: Case, places: list[int]) -> Tensor:
    other = case.taken(places)
    found = _allocated(other, other.features).probabilities
    return found[torch.tensor(places).argsort()]


def _tiled(case: Case, seed: int) -> Geometry:
    source = case.recipe.distance.source(case.features)
    geometry = DenseGeometry(source) if seed % 2 else TiledGeometry(source, 1 << 12)
    geometry._tile = max(2, -(-len(case.increments) // (2 + seed // 2 % 2)))
    geometry.unit = case.recipe.distance.unit(geometry)
    return geometry


def _moved(case: Case, places: list[int]) -> Tensor:
    """The memories of another order, sent back to their places by the geometry."""
    other = case.taken(places)
    geometry = build_geometry(other.features, case.recipe.distance)
    back = PermutedGeometry(geometry, torch.tensor(places).argsort())
    return _allocated(case, back).probabilities


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def _told_apart(case: Case, base: Allocation) -> float:
    """What rounding may change where temperatures, or supports, are so low that they show it."""
    eps = torch.finfo(case.precision).eps
    largest = float(case.increments.double().abs().max())
    supported = float(base.support.double().sum())
    if case.recipe.control is Control.NO_TRANSPORT and supported > 0:
        # Shares of what increments that cancel leave: the rounding of their sums is theirs, too.
        return min(1.0, 4 * eps * largest / supported)
    # Matched ones take over an ESS; of near equal probabilities it changes with their square.
    matched = 10 * math.sqrt(eps) if case.recipe.control in MATCHING else 0.0
    if base.temperature == 0:
        return matched
    return min(1.0, matched + 4 * eps * largest / base.temperature)


def _single(values: Tensor) -> Tensor:
    return values.double().clamp(-1e38, 1e38).float()


def _conditioning(case: Case, probabilities: Tensor) -> float:
    """How far p moves if the numbers are changed in their last digits."""
    size = 4 * torch.finfo(case.precision).eps
    nudged = [case.nudged(size, key) for key in range(4)]
    moved = [_distance(_allocated(x, x.features).probabilities, probabilities) for x in nudged]
    return max(moved)


def _unsound(found: Allocation, case: Case, *, exact: bool) -> list[str]:
    recipe, problems = case.recipe, []
    vectors = torch.stack([getattr(found, name) for name in _VECTORS])
    least, most = vectors.amin(dim=1).tolist(), vectors.amax(dim=1).tolist()
    for name, low, high in zip(_VECTORS, least, most, strict=True):
        if not (math.isfinite(low) and math.isfinite(high)):
            problems.append(f"{name} not finite")
        elif name != "consensus" and low < 0:
            problems.append(f"{name} negative")
    numbers = {"mass": found.mass, "value": found.value, "T": found.temperature}
    problems += [f"{name} {x}" for name, x in numbers.items() if not math.isfinite(x)]
    if problems:
        return problems
    tolerance = SUM_TOLERANCE[case.precision]
    floor = (1 - found.agreement) * (1 - recipe.alpha)
    if recipe.control == "no-floor":
        floor = 0.0
    if not floor - tolerance <= found.mass <= 1:
        problems.append(f"mass {found.mass}, expected {floor} to 1")
    sums = (
        {"p": found.probabilities, "target": found.target} if exact else {"p": found.probabilities}
    )
    for name, values in sums.items():
        if abs(float(values.double().sum()) - 1) > tolerance:
            problems.append(f"{name} sums to {float(values.double().sum())}")
    if exact and abs(float(found.weights.double().sum()) - found.mass) > tolerance:
        problems.append(f"weights sum to {float(found.weights.double().sum())}, mass {found.mass}")
    return problems
