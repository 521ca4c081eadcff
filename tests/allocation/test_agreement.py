"""`allocate` against the float64 loops of `reference.py`: all recipes, controls, geometries."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from sphere_replay import Allocation, Control, Sphere, allocate
from sphere_replay.geometry import (
    Cosine,
    DenseGeometry,
    Euclidean,
    Precomputed,
    SquaredEuclidean,
    TiledGeometry,
)
from sphere_replay.geometry.tiles import TileGeometry
from tensors import random_memories, seeded

Rows = list[list[float]]
Oracle = tuple[Rows, float, float, float]
"""Costs, eps_s, eps_T and T of the reference."""

FIELDS = (
    "consensus",
    "support",
    "target",
    "sensitivity",
    "weights",
    "probabilities",
    "effective_neighbors",
    "radius",
)


def fixed(features: Rows, delta: list[float]) -> Oracle:
    return reference.cost_squared(features), 0.7, 1.3, 0.2 * 1.3


def vision(features: Rows, delta: list[float]) -> Oracle:
    costs = reference.cost_squared(features)
    eps_s, eps_t, temperature, _ = reference.neighbour(costs, delta, 5, 25, 0.5, None)
    return costs, eps_s, eps_t, temperature


def instruct(features: Rows, delta: list[float]) -> Oracle:
    costs = reference.cost_euclidean(features)
    return costs, *reference.spread(costs, delta, 0.2, 0.5, 1.0)


def coding(features: Rows, delta: list[float]) -> Oracle:
    costs = reference.cost_cosine(features, None, True)
    return costs, *reference.quantile(costs, delta, 1 / math.log(10), 1.0, 0.25)


RECIPES: dict[str, tuple[Sphere, Callable[[Rows, list[float]], Oracle]]] = {
    "fixed": (Sphere(eps_s=0.7, eps_t=1.3, tau=0.2), fixed),
    "vision": (Sphere.vision(), vision),
    "instruct": (Sphere.instruct(), instruct),
    "coding": (Sphere.coding(d0=None), coding),
}


@st.composite
def scored_memories(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Clustered features with coincident and zero rows, and increments of any sign and scale."""
    generator = seeded(draw(st.integers(0, 2**32 - 1)))
    size, dim = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    centers = torch.randn(draw(st.integers(1, 5)), dim, generator=generator, dtype=torch.float64)
    spread = draw(st.sampled_from([0.0, 1e-3, 0.1, 1.0]))
    features = centers[torch.randint(len(centers), (size,), generator=generator)]
    features = features + spread * torch.randn(size, dim, generator=generator, dtype=torch.float64)
    if draw(st.booleans()):
        features[torch.randint(size, (1,), generator=generator)] = 0.0
    delta = torch.randn(size, generator=generator, dtype=torch.float64)
    delta = delta + draw(st.sampled_from([-3.0, 0.0, 0.5])) if draw(st.booleans()) else delta
    return features, delta * 10.0 ** draw(st.integers(-4, 4))


def expected(recipe: str, features: Tensor, delta: Tensor, alpha: float) -> reference.Allocation:
    rows, increments = features.double().tolist(), delta.double().tolist()
    costs, eps_s, eps_t, temperature = RECIPES[recipe][1](rows, increments)
    return reference.allocate(costs, increments, eps_s, eps_t, temperature, alpha)


def assume_clear_signs(oracle: reference.Allocation, delta: Tensor, precision: float) -> None:
    """The mask 1[Sδ > 0] jumps: leave out fields that rounding alone pushes across zero."""
    largest = float(delta.abs().max())
    assume(all(abs(value) > precision * largest or value == 0 for value in oracle.consensus))


def agree(ours: Allocation, oracle: reference.Allocation, precision: float) -> None:
    for name in FIELDS:
        theirs = torch.tensor(getattr(oracle, name), dtype=torch.float64)
        error = (getattr(ours, name).double() - theirs).abs().max()
        # Distances are as precise as the kernel that uses them needs, which is relative to eps_s.
        scale = ours.eps_s if name == "radius" else 1e-300
        assert error <= precision * max(float(theirs.abs().max()), scale), (name, error)
    assert ours.mass == pytest.approx(oracle.mass, rel=precision)
    scale = max(abs(oracle.value), max(oracle.support))
    assert abs(ours.value - oracle.value) <= precision * max(scale, ours.temperature)


@pytest.mark.parametrize("recipe", RECIPES)
@given(memories=scored_memories(), alpha=st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=60)
def test_float64_agrees_to_ten_digits(
    recipe: str, memories: tuple[Tensor, Tensor], alpha: float
) -> None:
    features, delta = memories
    oracle = expected(recipe, features, delta, alpha)
    assume_clear_signs(oracle, delta, 1e-12)
    ours = allocate(delta, features, replace(RECIPES[recipe][0], alpha=alpha))
    agree(ours, oracle, 1e-10)


@pytest.mark.parametrize("recipe", RECIPES)
@given(memories=scored_memories())
@settings(max_examples=60)
def test_float32_agrees_to_five_digits(recipe: str, memories: tuple[Tensor, Tensor]) -> None:
    features, delta = memories[0].float(), memories[1].float()
    oracle = expected(recipe, features, delta, 0.5)
    assume_clear_signs(oracle, delta, 1e-5)
    ours = allocate(delta, features, RECIPES[recipe][0])
    # exp(v/T) amplifies the rounding of Sδ, which is relative to the largest increment, by 1/T.
    largest = float(delta.abs().max())
    amplified = largest / ours.temperature if ours.temperature > 0 else 0.0
    agree(ours, oracle, 1e-5 * max(1.0, amplified / 50))


def test_bfloat16_features_are_taken_at_their_value() -> None:
    features, delta = random_memories(30, 6, seed=0, dtype=torch.float32)
    features = features.bfloat16()
    agree(allocate(delta, features), expected("vision", features, delta, 0.5), 1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiles_of_any_size_and_budget_agree_with_dense(
    recipe: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.tiling.TILE", {"cpu": 7})
    features, delta = random_memories(40, 5, seed=3, dtype=dtype)
    features[11] = features[30]
    oracle = expected(recipe, features, delta, 0.5)
    distance = RECIPES[recipe][0].distance
    precision = 1e-10 if dtype == torch.float64 else 1e-5
    for budget in (None, 0, 6000):
        source = distance.source(features)
        geometry: TileGeometry = (
            DenseGeometry(source) if budget is None else TiledGeometry(source, budget)
        )
        geometry.unit = distance.unit(geometry)
        agree(allocate(delta, geometry, RECIPES[recipe][0]), oracle, precision)


def test_the_running_scale_is_an_average_that_starts_at_its_first_value() -> None:
    generator = seeded(1)
    features = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    costs = reference.cost_squared(features.tolist())
    ours: float | None = None
    theirs: float | None = None
    for _ in range(4):
        delta = torch.randn(30, generator=generator, dtype=torch.float64)
        allocation = allocate(delta, features, running_scale=ours)
        eps_s, eps_t, temperature, theirs = reference.neighbour(
            costs, delta.tolist(), 5, 25, 0.5, theirs
        )
        ours = allocation.running_scale
        assert ours == pytest.approx(theirs, rel=1e-12)
        assert allocation.temperature == pytest.approx(temperature, rel=1e-12)
        assert (allocation.eps_s, allocation.eps_t) == pytest.approx((eps_s, eps_t), rel=1e-12)


class TestControls:
    """Each control of the ablation table against its definition in the reference."""

    @pytest.fixture
    def memories(self) -> tuple[Tensor, Tensor]:
        features, delta = random_memories(35, 4, seed=5)
        return features, delta + 0.2

    def ours(self, memories: tuple[Tensor, Tensor], control: Control) -> Allocation:
        features, delta = memories
        recipe = Sphere.instruct(control=control)
        return allocate(delta, features, recipe, generator=seeded())

    def theirs(self, memories: tuple[Tensor, Tensor]) -> tuple[Rows, list[float], Oracle]:
        features, delta = memories[0].tolist(), memories[1].tolist()
        oracle = instruct(features, delta)
        return oracle[0], delta, oracle

    def same(self, ours: Allocation, theirs: reference.Blend, precision: float = 1e-10) -> None:
        weights, mass, probabilities = theirs
        assert ours.weights.tolist() == pytest.approx(weights, rel=precision)
        assert ours.mass == pytest.approx(mass, rel=precision)
        assert ours.probabilities.tolist() == pytest.approx(probabilities, rel=precision)

    def test_identity(self, memories: tuple[Tensor, Tensor]) -> None:
        costs, delta, (_, _, eps_t, _) = self.theirs(memories)
        spread = reference.population_std(reference.positive_part(delta))
        oracle = reference.identity(costs, delta, eps_t, spread, 0.5)
        agree(self.ours(memories, Control.IDENTITY), oracle, 1e-10)

    def test_no_transport(self, memories: tuple[Tensor, Tensor]) -> None:
        costs, delta, (_, eps_s, _, _) = self.theirs(memories)
        oracle = reference.no_transport(costs, delta, eps_s, 0.5)
        self.same(self.ours(memories, Control.NO_TRANSPORT), oracle)

    def test_no_floor(self, memories: tuple[Tensor, Tensor]) -> None:
        costs, delta, (_, eps_s, eps_t, temperature) = self.theirs(memories)
        oracle = reference.allocate(costs, delta, eps_s, eps_t, temperature, 1.0)
        agree(self.ours(memories, Control.NO_FLOOR), oracle, 1e-10)

    def test_consensus_only_matches_the_full_methods_ess(
        self, memories: tuple[Tensor, Tensor]
    ) -> None:
        costs, delta, (_, eps_s, eps_t, temperature) = self.theirs(memories)
        full = reference.allocate(costs, delta, eps_s, eps_t, temperature, 0.5)

        def blend(t: float) -> reference.Blend:
            return reference.consensus_only(costs, delta, eps_s, t, 0.5)

        target = reference.ess(full.probabilities)
        solved = reference.solve_temperature(lambda t: reference.ess(blend(t)[2]), target)
        ours = self.ours(memories, Control.CONSENSUS)
        assert ours.effective_sample_size == pytest.approx(target, rel=1e-9)
        self.same(ours, blend(solved), 1e-7)

    def test_matched_mir_matches_the_full_methods_ess(
        self, memories: tuple[Tensor, Tensor]
    ) -> None:
        costs, delta, (_, eps_s, eps_t, temperature) = self.theirs(memories)
        full = reference.allocate(costs, delta, eps_s, eps_t, temperature, 0.5)
        target = reference.ess(full.probabilities)
        solved = reference.solve_temperature(
            lambda t: reference.ess(reference.matched_mir(delta, t)[2]), target
        )
        ours = self.ours(memories, Control.MATCHED_MIR)
        assert ours.effective_sample_size == pytest.approx(target, rel=1e-9)
        self.same(ours, reference.matched_mir(delta, solved), 1e-7)

    def test_permuted_geometry_is_the_full_method_on_shuffled_rows(
        self, memories: tuple[Tensor, Tensor]
    ) -> None:
        features, delta = memories
        places = torch.randperm(len(delta), generator=seeded())
        oracle = expected("instruct", features[places], delta, 0.5)
        agree(self.ours(memories, Control.PERMUTED), oracle, 1e-10)

    def test_permuted_geometry_needs_a_generator(self, memories: tuple[Tensor, Tensor]) -> None:
        with pytest.raises(ValueError, match="pass generator="):
            allocate(memories[1], memories[0], Sphere.instruct(control="permuted"))


@pytest.mark.parametrize(
    ("distance", "costs"),
    [
        (SquaredEuclidean(), reference.cost_squared),
        (Euclidean(), reference.cost_euclidean),
        (Cosine(0.3), lambda rows: reference.cost_cosine(rows, 0.3, False)),
        (Cosine(0.3, center=True), lambda rows: reference.cost_cosine(rows, 0.3, True)),
    ],
)
def test_a_cost_matrix_gives_what_its_distance_gives(
    distance: SquaredEuclidean, costs: Callable[[Rows], Rows]
) -> None:
    features, delta = random_memories(25, 3, seed=2)
    matrix = torch.tensor(costs(features.tolist()), dtype=torch.float64)
    recipe = Sphere(eps_s=0.4, eps_t=0.8, tau=0.3, distance=distance)
    by_features = allocate(delta, features, recipe)
    by_matrix = allocate(delta, matrix, replace(recipe, distance=Precomputed()))
    torch.testing.assert_close(by_matrix.weights, by_features.weights, rtol=1e-10, atol=0)
