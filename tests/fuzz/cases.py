"""Scored memories as awkward as floats allow, each made of one number."""

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sphere_replay import Sphere
from sphere_replay.allocation.controls import Control
from sphere_replay.geometry import Precomputed

SHUFFLING = (Control.PERMUTED, Control.BACKING_PERMUTED)
"""Controls whose result depends on a generator."""
MATCHING = (Control.CONSENSUS, Control.MATCHED_MIR)
"""Controls that search a temperature."""


@dataclass(frozen=True)
class Case:
    """What `allocate` is given."""

    increments: Tensor
    features: Tensor
    """Or the cost matrix."""
    recipe: Sphere
    labels: Tensor | None

    @property
    def costs(self) -> bool:
        """Whether the features are a cost matrix."""
        return isinstance(self.recipe.distance, Precomputed)

    @property
    def precision(self) -> torch.dtype:
        """The coarser one of what goes in."""
        both = self.increments.dtype, self.features.dtype
        return torch.float64 if both == (torch.float64, torch.float64) else torch.float32

    def taken(self, places: list[int]) -> "Case":
        """The memories in another order."""
        features = self.features[places]
        return replace(
            self,
            increments=self.increments[places],
            features=features[:, places] if self.costs else features,
            labels=None if self.labels is None else self.labels[places],
        )

    def nudged(self, size: float, key: int) -> "Case":
        """Every number changed by about so much, equal ones equally: ties and twins stay."""
        return replace(
            self,
            increments=_nudged(self.increments, size, key),
            features=_nudged(self.features, size, key + 1),
        )


def make_case(seed: int) -> Case:
    """The case that a number stands for."""
    dice = random.Random(seed)
    size = dice.choice([1, 2, 3, 3, 4, 4, 5, 6, 8, dice.randint(9, 24)])
    dtype = dice.choice([torch.float32, torch.float64])
    fixed = dice.random() < 0.4
    recipe = _fixed(dice) if fixed else _policy(dice)
    if fixed and dice.random() < 0.5:
        recipe = replace(recipe, distance=Precomputed())
        features = _costs(dice, size, dtype)
    else:
        features = _features(dice, size, dtype)
    labels = None
    if recipe.agreement > 0 or dice.random() < 0.1:
        labels = torch.tensor([dice.randrange(3) for _ in range(size)])
    finer = dtype if dice.random() < 0.8 else torch.float64
    return Case(_increments(dice, size, finer), features, recipe, labels)


def _power(dice: random.Random, low: float, high: float) -> float:
    return float(10.0 ** dice.uniform(low, high))


def _fixed(dice: random.Random) -> Sphere:
    extreme = dice.random() < 0.3
    wide = (-13.0, 8.0) if extreme else (-2.0, 1.0)
    tau = dice.choice([0.0, _power(dice, -30, 30)]) if extreme else _power(dice, -2, 1)
    return Sphere(
        eps_s=_power(dice, *wide),
        eps_t=_power(dice, *wide),
        tau=tau,
        alpha=dice.choice([0.0, 0.5, 0.5, 1.0, dice.random()]),
        control=_control(dice, backed=False),
        leave_one_out=dice.random() < 0.2,
    )


def _policy(dice: random.Random) -> Sphere:
    alpha = dice.choice([0.5, 1.0])
    kind = dice.randrange(4)
    if kind == 3:
        agreement = dice.choice([0.0, 0.5, 1.0])
        return Sphere.calibrated(
            dice.choice([2.0, 8.0]),
            rule=dice.choice(["increments", "spread", "quantile"]),
            alpha=alpha,
            agreement=agreement,
            votes=dice.choice(["plain", "balanced"]),
            strength=dice.choice(["fixed", "noise"]),
            leave_one_out=dice.random() < 0.5,
            control=_control(dice, backed=agreement > 0),
        )
    control = _control(dice, backed=False)
    if kind == 0:
        neighbors = dice.choice([(5, 25), (1, 2)])
        return Sphere.vision(*neighbors, alpha=alpha, control=control)
    if kind == 1:
        return Sphere.instruct(alpha=alpha, control=control)
    return Sphere.coding(d0=dice.choice([None, 0.524]), alpha=alpha, control=control)


def _control(dice: random.Random, *, backed: bool) -> Control | None:
    """Matched controls seldom: their search takes as long as ten allocations."""
    if dice.random() < 0.5:
        return None
    often = [control for control in Control if control not in MATCHING]
    control = dice.choice(MATCHING if dice.random() < 0.05 else often)
    return control if backed or control is not Control.BACKING_PERMUTED else None


def _features(dice: random.Random, size: int, dtype: torch.dtype) -> Tensor:
    """Few places for many memories, tight clusters, rows of zeros, any length."""
    dim = dice.randint(1, 4)
    places = [[dice.gauss(0, 1) for _ in range(dim)] for _ in range(dice.randint(1, size))]
    if dice.random() < 0.2:
        places[0] = [0.0] * dim
    spread = dice.choice([0.0, 0.0, 1e-9, 1e-4, 0.1, 1.0])
    rows = [
        [x + spread * dice.gauss(0, 1) if spread else x for x in dice.choice(places)]
        for _ in range(size)
    ]
    scale = 1.0
    if dice.random() < 0.15:
        scale = _power(dice, -200, 200) if dtype == torch.float64 else _power(dice, -30, 30)
    return torch.tensor(rows, dtype=torch.float64).mul_(scale).to(dtype)


def _costs(dice: random.Random, size: int, dtype: torch.dtype) -> Tensor:
    """Symmetric, at any scale, with ties and with zeros off the diagonal."""
    scale = 1.0
    if dice.random() < 0.5:
        scale = _power(dice, -20, 30)
    few = [dice.random(), dice.random(), 0.0]
    matrix = torch.zeros(size, size, dtype=torch.float64)
    tied = dice.random() < 0.3
    for i in range(size):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = dice.choice(few) if tied else dice.random()
    return matrix.mul_(scale).to(dtype)


def _increments(dice: random.Random, size: int, dtype: torch.dtype) -> Tensor:
    kind = dice.randrange(7)
    values = [dice.gauss(0, 1) for _ in range(size)]
    if kind == 1:  # ties, and sums that cancel
        values = [dice.choice([0.1, 0.2, -0.3, 1.0, -1.0, 0.0]) for _ in range(size)]
    elif kind == 2:
        values = [dice.choice([value, -values[0]]) for value in values]
    elif kind == 3:
        values = [dice.choice([0.0, abs(value)]) for value in values]
    elif kind == 4:  # near ties
        values = [1.0 + dice.choice([0.0, 1e-15, 1e-9, 1e-7, 1e-3]) * value for value in values]
    elif kind == 5:  # magnitudes far apart
        values = [value * _power(dice, -12, 0) for value in values]
    scale = 1.0
    if dice.random() < 0.3:
        scale = _power(dice, -322, 307) if dtype == torch.float64 else _power(dice, -44, 37)
    return torch.tensor(values, dtype=torch.float64).mul_(scale).to(dtype)


def _nudged(values: Tensor, size: float, key: int) -> Tensor:
    precise = values.double()
    mantissa = torch.frexp(precise.abs()).mantissa
    return (precise * (1 + size * torch.sin(1e7 * (1 + key) * mantissa))).to(values.dtype)
