"""Numbers that never lie: degenerate input has a defined result, bad input a clear error."""

import math
import re
from dataclasses import replace

import numpy
import pytest
import torch
from torch import Tensor

import reference
from sphere_replay import Sphere, allocate
from sphere_replay.allocation import FixedScales, NeighborScales, SpreadScales
from sphere_replay.geometry import Cosine, Precomputed, build_geometry
from tensors import random

ALL_RECIPES = {
    "fixed": Sphere(eps_s=0.5, eps_t=1.0, tau=0.2),
    "vision": Sphere.vision(),
    "instruct": Sphere.instruct(),
    "coding": Sphere.coding(d0=None),
}
every_recipe = pytest.mark.parametrize("recipe", ALL_RECIPES.values(), ids=list(ALL_RECIPES))
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def assert_uniform(probabilities: Tensor) -> None:
    expected = torch.full_like(probabilities, 1 / len(probabilities))
    torch.testing.assert_close(probabilities, expected)


def assert_sound(recipe: Sphere, increments: Tensor, features: Tensor) -> None:
    allocation = allocate(increments, features, recipe)
    for name in ("weights", "probabilities", "consensus", "support", "target", "sensitivity"):
        assert bool(getattr(allocation, name).isfinite().all()), name
    assert bool((allocation.weights >= 0).all())
    assert 1 - recipe.alpha - 1e-6 <= allocation.mass <= 1 + 1e-6
    assert float(allocation.probabilities.sum()) == pytest.approx(1, rel=1e-5)
    assert float(allocation.target.sum()) == pytest.approx(1, rel=1e-5)
    assert math.isfinite(allocation.value)


@every_recipe
class TestDegenerateInput:
    def test_single_memory_gets_everything(self, recipe: Sphere) -> None:
        allocation = allocate(torch.tensor([2.0]), random(1, 3), recipe)
        assert allocation.probabilities.tolist() == [1.0]
        assert allocation.consensus.tolist() == [2.0]
        assert allocation.effective_neighbors.tolist() == [1.0]
        assert allocation.radius.tolist() == [0.0]

    def test_equal_increments_are_their_own_consensus(self, recipe: Sphere) -> None:
        allocation = allocate(torch.full((20,), 0.3), random(20, 4), recipe)
        torch.testing.assert_close(allocation.consensus, torch.full((20,), 0.3))
        assert_sound(recipe, torch.full((20,), 0.3), random(20, 4))

    def test_nothing_at_risk_leaves_uniform_replay_at_the_floor(self, recipe: Sphere) -> None:
        allocation = allocate(-random(20).abs() - 0.1, random(20, 4), recipe)
        assert allocation.sensitivity.tolist() == [0.0] * 20
        assert allocation.mass == pytest.approx(1 - recipe.alpha)
        assert_uniform(allocation.probabilities)

    def test_zero_increments_are_nothing_at_risk(self, recipe: Sphere) -> None:
        allocation = allocate(torch.zeros(8), random(8, 4), recipe)
        assert allocation.mass == pytest.approx(1 - recipe.alpha)
        assert_uniform(allocation.probabilities)

    def test_coincident_memories_share_one_fate(self, recipe: Sphere) -> None:
        features = random(10, 4).repeat(3, 1)
        allocation = allocate(random(30, seed=1), features, recipe)
        for values in (allocation.consensus, allocation.sensitivity):
            torch.testing.assert_close(values[:10], values[10:20], rtol=1e-5, atol=1e-7)

    def test_rows_that_differ_in_length_only_coincide(self, recipe: Sphere) -> None:
        features = random(10, 4)
        allocation = allocate(random(20, seed=1), torch.cat([features, features * 3.0]), recipe)
        torch.testing.assert_close(
            allocation.consensus[:10], allocation.consensus[10:], rtol=1e-4, atol=1e-6
        )

    @pytest.mark.parametrize("size", [12, 1000])
    def test_all_memories_in_one_place(self, recipe: Sphere, size: int) -> None:
        increments = random(size) + 0.5
        allocation = allocate(increments, random(1, 4).repeat(size, 1), recipe)
        torch.testing.assert_close(
            allocation.consensus, increments.mean().expand(size), rtol=1e-5, atol=1e-6
        )
        assert_uniform(allocation.probabilities)
        if recipe == ALL_RECIPES["instruct"]:  # no spread, hence no temperature
            assert allocation.temperature == 0.0
            assert allocation.mass == pytest.approx(0.5)

    def test_zero_feature_rows(self, recipe: Sphere) -> None:
        features = random(15, 4)
        features[[2, 7]] = 0.0
        assert_sound(recipe, random(15), features)
        assert_sound(recipe, random(15), torch.zeros(15, 4))

    @pytest.mark.parametrize("magnitude", [1e30, 1e-30])
    def test_huge_and_tiny_increments(self, recipe: Sphere, magnitude: float) -> None:
        assert_sound(recipe, random(25) * magnitude, random(25, 4))

    def test_huge_and_tiny_features_have_the_same_directions(self, recipe: Sphere) -> None:
        features = random(25, 4, dtype=torch.float64)
        increments = random(25, seed=1, dtype=torch.float64)
        expected = allocate(increments, features, recipe).weights
        for scale in (1e-200, 1e200):
            weights = allocate(increments, features * scale, recipe).weights
            torch.testing.assert_close(weights, expected, rtol=1e-9, atol=0)


@every_dtype
@pytest.mark.parametrize("tau", [1e-3, 1e-6, 1e-30])
def test_spread_scores_move_to_the_log_domain(dtype: torch.dtype, tau: float) -> None:
    features, increments = random(30, 4, dtype=dtype), random(30, seed=1, dtype=dtype)
    allocation = allocate(increments, features, Sphere(eps_s=0.5, eps_t=1.0, tau=tau))
    costs = reference.cost_squared(features.double().tolist())
    oracle = reference.allocate(costs, increments.double().tolist(), 0.5, 1.0, tau, 0.5)
    precision = 1e-9 if dtype == torch.float64 else 2e-3
    assert allocation.target.tolist() == pytest.approx(oracle.target, abs=precision)
    assert allocation.weights.tolist() == pytest.approx(oracle.weights, abs=precision)
    assert allocation.value == pytest.approx(oracle.value, rel=1e-5)


def test_log_domain_and_products_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    features, increments = random(300, 6), random(300, seed=1)
    products = allocate(increments, features)
    monkeypatch.setattr(
        "sphere_replay.allocation.transport.LARGEST_EXPONENT", {torch.float32: -1.0}
    )
    logs = allocate(increments, features)
    torch.testing.assert_close(logs.weights, products.weights, rtol=1e-5, atol=0)
    assert logs.value == pytest.approx(products.value, rel=1e-5)


def test_zero_temperature_moves_nothing() -> None:
    increments = random(9).abs()
    allocation = allocate(increments, random(9, 3), Sphere(eps_s=1.0, eps_t=1.0, tau=0.0))
    assert allocation.sensitivity.tolist() == [0.0] * 9
    assert_uniform(allocation.target)
    assert_uniform(allocation.probabilities)
    assert allocation.mass == pytest.approx(0.5)
    assert allocation.value == pytest.approx(float(allocation.support.max()))


def test_first_rescoring_without_positive_increments_recovers_later() -> None:
    features = random(40, 4)
    first = allocate(-torch.ones(40), features)
    assert (first.temperature, first.running_scale) == (0.0, 0.0)
    second = allocate(random(40, seed=1), features, running_scale=first.running_scale)
    assert second.temperature > 0
    assert second.mass > 0.5


def test_more_neighbors_than_memories_are_clamped() -> None:
    features, increments = random(6, 3), random(6, seed=1)
    clamped = allocate(increments, features, Sphere.vision(k_s=100, k_t=1000))
    exact = allocate(increments, features, Sphere.vision(k_s=5, k_t=5))
    assert clamped.weights.tolist() == exact.weights.tolist()


def test_mostly_coincident_memories_floor_the_kernel_scale() -> None:
    features = torch.cat([random(1, 4).repeat(30, 1), random(10, 4, seed=1)])
    increments = random(40, seed=2)
    allocation = allocate(increments, features)
    assert allocation.eps_s == 1e-12
    # Only coincident memories are averaged; the others keep their own increments.
    torch.testing.assert_close(allocation.consensus[:30], increments[:30].mean().expand(30))
    torch.testing.assert_close(allocation.consensus[30:], increments[30:])


def test_without_floor_and_without_risk_replay_is_uniform_with_no_mass() -> None:
    allocation = allocate(-torch.ones(5), random(5, 2), Sphere.vision(control="no-floor"))
    assert allocation.mass == 0.0
    assert_uniform(allocation.probabilities)


@pytest.mark.parametrize("control", ["consensus", "no-transport", "mir-matched", "identity"])
def test_controls_without_risk_fall_back_to_uniform(control: str) -> None:
    allocation = allocate(-torch.ones(7), random(7, 3), Sphere.instruct(control=control))
    assert_uniform(allocation.probabilities)


def test_results_keep_the_increments_precision() -> None:
    features = random(10, 3)
    assert allocate(random(10).double(), features).weights.dtype == torch.float64
    assert allocate(random(10), features).weights.dtype == torch.float32
    assert allocate(random(10).bfloat16(), features).weights.dtype == torch.float32


def test_an_allocation_prints_as_one_line_without_its_vectors() -> None:
    exact = repr(allocate(random(400), random(400, 3)))
    assert re.fullmatch(r"Allocation\(400 memories, ESS \d+\.\d, mass .*, T [^,]*\)", exact)
    certified = repr(allocate(random(400), random(400, 3), geometry="cells"))
    assert re.search(r", TV within \d+\.\d\d%\)$", certified)


def test_inputs_are_left_alone() -> None:
    features, increments = random(20, 4), random(20)
    copies = features.clone(), increments.clone()
    for recipe in ALL_RECIPES.values():
        allocate(increments, features, recipe)
    assert torch.equal(features, copies[0])
    assert torch.equal(increments, copies[1])


class TestErrors:
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_non_finite_increment_is_named(self, value: float) -> None:
        increments = random(9)
        increments[4] = value
        with pytest.raises(ValueError, match=r"increments\[4\] = .*memory 4.*check the loss"):
            allocate(increments, random(9, 2))

    def test_non_finite_feature_is_named(self) -> None:
        features = random(9, 2)
        features[3, 1] = math.nan
        with pytest.raises(ValueError, match=r"features\[3, 1\] = nan: memory 3"):
            allocate(random(9), features)

    def test_large_finite_values_are_not_mistaken_for_bad_ones(self) -> None:
        features = torch.full((4, 3), 3e38)
        assert bool(allocate(torch.ones(4) * 3e38, features).weights.isfinite().all())

    @pytest.mark.parametrize(
        ("increments", "features", "message"),
        [
            (torch.zeros(0), torch.zeros(0, 2), "increments are empty"),
            (torch.zeros(3, 1), torch.zeros(3, 2), r"shape \[m\].*got \[3, 1\]"),
            (torch.zeros(3), torch.zeros(3), r"shape \[m, d\].*got \[3\]"),
            (torch.zeros(3), torch.zeros(3, 0), r"d >= 1"),
            (torch.zeros(3), torch.zeros(4, 2), "3 increments but 4 feature rows"),
            (torch.zeros(3), torch.zeros(3, 2, dtype=torch.long), "floating point"),
        ],
    )
    def test_wrong_shapes(self, increments: Tensor, features: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            allocate(increments, features)

    def test_wrong_types(self) -> None:
        with pytest.raises(TypeError, match=r"increments must be a torch\.Tensor, got list"):
            allocate([1.0], torch.zeros(1, 2))  # type: ignore[arg-type]  # the mistake under test
        with pytest.raises(TypeError, match="a Geometry, got list"):
            allocate(torch.ones(1), [[1.0]])  # type: ignore[arg-type]  # the mistake under test
        with pytest.raises(ValueError, match=r"floating point, got torch\.bool"):
            allocate(torch.ones(1).bool(), torch.zeros(1, 2))

    @pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf])
    def test_impossible_running_scales(self, scale: float) -> None:
        with pytest.raises(ValueError, match="running_scale must be finite"):
            allocate(random(4), random(4, 2), running_scale=scale)

    def test_a_negative_budget(self) -> None:
        with pytest.raises(ValueError, match=r"budget counts bytes .* got -1"):
            allocate(random(4), random(4, 2), budget=-1)

    def test_geometry_of_another_size(self) -> None:
        with pytest.raises(ValueError, match="3 increments but a geometry of 4 memories"):
            allocate(torch.zeros(3), build_geometry(random(4, 2)))

    @pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
    def test_alpha_outside_the_unit_interval(self, alpha: float) -> None:
        with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\]"):
            Sphere.vision(alpha=alpha)

    def test_scales_that_are_not_positive(self) -> None:
        with pytest.raises(ValueError, match="eps_s must be positive and finite, got 0"):
            FixedScales(eps_s=0.0, eps_t=1.0, tau=1.0)
        with pytest.raises(ValueError, match="tau must be finite and not negative"):
            FixedScales(eps_s=1.0, eps_t=1.0, tau=-1.0)
        with pytest.raises(ValueError, match="k_s must be a whole number of at least 1, got 0"):
            NeighborScales(k_s=0)
        assert NeighborScales(k_s=numpy.int64(3)).k_s == 3  # type: ignore[arg-type]  # a whole number
        with pytest.raises(ValueError, match=r"k_t must be a whole number.*got 2\.5"):
            NeighborScales(k_t=2.5)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(TypeError, match="recipe must be a Sphere"):
            allocate(torch.ones(3), torch.eye(3), "vision")  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ValueError, match=r"use \.to_dense"):
            allocate(torch.ones(3), torch.eye(3).to_sparse())
        with pytest.raises(ValueError, match="c_beta must be positive and finite, got inf"):
            SpreadScales(c_beta=math.inf)
        with pytest.raises(ValueError, match="d0 must be positive"):
            Cosine(d0=0.0)

    def test_recipes_name_what_is_missing(self) -> None:
        with pytest.raises(ValueError, match="or all of eps_s, eps_t and tau"):
            Sphere(eps_s=1.0)
        with pytest.raises(ValueError, match="leave out scales="):
            Sphere(NeighborScales(), tau=1.0)
        with pytest.raises(ValueError, match="unknown control 'nonsense'; known: identity"):
            Sphere.vision(control="nonsense")

    @pytest.mark.parametrize(
        ("matrix", "message"),
        [
            (torch.zeros(3, 2), "must be square, got 3 x 2"),
            (torch.tensor([[0.0, -1.0], [-1.0, 0.0]]), r"cost\[0, 1\] = -1.0 is negative"),
            (torch.tensor([[1.0, 2.0], [2.0, 0.0]]), r"cost\[0, 0\] = 1.0 must be 0"),
            (torch.tensor([[0.0, 2.0], [1.0, 0.0]]), "not symmetric.*average it"),
        ],
    )
    def test_cost_matrices_that_are_none(self, matrix: Tensor, message: str) -> None:
        recipe = replace(ALL_RECIPES["fixed"], distance=Precomputed())
        with pytest.raises(ValueError, match=message):
            allocate(torch.ones(len(matrix)), matrix, recipe)
