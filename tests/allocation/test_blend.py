"""The blend of floor and sensitivity, and what an allocation may not depend on; all recipes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from allocation.statements import ROUNDING, assume_decided
from sphere_replay import Sphere, allocate
from strategies import magnitudes, scored_features
from tensors import seeded

RECIPES = {
    "vision": Sphere.vision(),
    "vision-narrow": Sphere.vision(k_s=1, k_t=2, t_frac=1.0, alpha=0.85),
    "instruct": Sphere.instruct(),
    "coding": Sphere.coding(),
    "coding-own-scale": Sphere.coding(d0=None, alpha=0.7),
}
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())


class TestBlend:
    @each_recipe
    @given(scored_features())
    @settings(max_examples=30)
    def test_weights_are_a_floor_plus_sensitivity(
        self, recipe: Sphere, case: tuple[Tensor, Tensor]
    ) -> None:
        allocation = allocate(*case, recipe)
        floor = (1 - recipe.alpha) / len(allocation)
        assert bool((allocation.weights >= floor * (1 - ROUNDING)).all())
        assert 1 - recipe.alpha - ROUNDING <= allocation.mass <= 1 + ROUNDING
        assert float(allocation.weights.sum()) == pytest.approx(allocation.mass)
        assert float(allocation.probabilities.sum()) == pytest.approx(1)
        supported = allocation.support > 0
        if not supported.any():
            assert allocation.mass == pytest.approx(1 - recipe.alpha)
            assert float(allocation.probabilities.std(correction=0)) < ROUNDING

    @each_recipe
    @given(scored_features(), st.integers(0, 1000))
    @settings(max_examples=30)
    def test_allocation_follows_a_permutation_of_the_memories(
        self, recipe: Sphere, case: tuple[Tensor, Tensor], seed: int
    ) -> None:
        delta, features = case
        order = torch.randperm(len(delta), generator=seeded(seed))
        here = allocate(delta, features, recipe)
        assume_decided(here, delta)
        there = allocate(delta[order], features[order], recipe)
        assert there.value == pytest.approx(here.value, rel=1e-7)
        for name in ("weights", "probabilities", "target", "sensitivity"):
            moved = getattr(here, name)[order]
            torch.testing.assert_close(getattr(there, name), moved, rtol=1e-6, atol=1e-9)

    @each_recipe
    @given(scored_features(), magnitudes(-6, 6))
    @settings(max_examples=30)
    def test_allocation_does_not_depend_on_the_unit_of_the_loss(
        self, recipe: Sphere, case: tuple[Tensor, Tensor], factor: float
    ) -> None:
        delta, features = case
        here = allocate(delta, features, recipe)
        assume_decided(here, delta)
        there = allocate(factor * delta, features, recipe)
        assert there.mass == pytest.approx(here.mass)
        assert there.value == pytest.approx(factor * here.value, rel=1e-7)
        torch.testing.assert_close(there.weights, here.weights, rtol=1e-6, atol=1e-9)

    def test_rounding_alone_is_no_spread(self) -> None:
        """Two far groups with the same increments: equal support, so T = 0 and nothing is moved."""
        features = torch.eye(2, dtype=torch.float64).repeat_interleave(4, dim=0)
        generator = seeded()
        for _ in range(50):
            group = torch.rand(4, generator=generator, dtype=torch.float64)
            delta = torch.cat([group, group[torch.randperm(4, generator=generator)]])
            allocation = allocate(delta, features, Sphere.instruct())
            assert allocation.weights.tolist() == pytest.approx([allocation.mass / 8] * 8)
            assert allocation.mass == pytest.approx(0.5)
