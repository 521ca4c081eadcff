"""Scales by a wanted number of neighbours, the consensus that leaves one out, and their recipe."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from allocation.statements import ROUNDING
from sphere_replay import Sphere, allocate
from sphere_replay.allocation import (
    CalibratedScales,
    NeighborScales,
    QuantileScales,
    SpreadScales,
    TemperatureRule,
)
from sphere_replay.allocation.smoothing import LeaveOneOutSmoother
from sphere_replay.geometry import Cosine, Precomputed, SquaredEuclidean, build_geometry
from sphere_replay.geometry.calibration import Scale, effective_sizes, scales_by_sizes
from sphere_replay.numeric import median
from strategies import Scored, features, scored
from tensors import random, random_memories

HIT = 2e-3
"""Twice the tolerance of the search."""


class TestBandwidths:
    @given(rows=features(min_size=2), share=st.floats(0.1, 0.9))
    @settings(max_examples=60)
    def test_hit_the_wanted_neighbours_of_a_small_memory(self, rows: Tensor, share: float) -> None:
        costs = reference.cost_squared(rows.tolist())
        coincident = reference.percentile([float(sum(x < 1e-9 for x in row)) for row in costs], 0.5)
        neighbors = coincident + share * (len(rows) - coincident)
        assume(neighbors > 1.01 * coincident)
        eps_s, eps_t = CalibratedScales(neighbors, neighbors).bandwidths(build_geometry(rows))
        assert eps_s == eps_t
        squares = reference.neighbourhood(reference.smoothing_matrix(costs, eps_s), costs)[1]
        found = reference.percentile([1 / x for x in squares], 0.5)
        assert found == pytest.approx(neighbors, rel=HIT)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("distance", [SquaredEuclidean(), Cosine(0.3)])
    def test_hit_the_wanted_neighbours_of_a_large_memory(
        self, dtype: torch.dtype, distance: SquaredEuclidean | Cosine
    ) -> None:
        geometry = build_geometry(random(1500, 64, dtype=dtype).relu(), distance)
        for eps, wanted in zip(CalibratedScales().bandwidths(geometry), (8, 40), strict=True):
            median = float(geometry.neighborhood(eps).effective_size.median())
            assert median == pytest.approx(wanted, rel=0.1)  # the scale is that of 128 memories

    def test_need_no_luck_when_all_rows_are_alike(self) -> None:
        cost = (torch.arange(300)[:, None] - torch.arange(300)).abs()
        ring = torch.minimum(cost, 300 - cost).double()
        geometry = build_geometry(ring, Precomputed())
        for eps, wanted in zip(CalibratedScales(5, 77).bandwidths(geometry), (5, 77), strict=True):
            sizes = geometry.neighborhood(eps).effective_size
            torch.testing.assert_close(sizes, torch.full_like(sizes, wanted), rtol=HIT, atol=0)

    def test_fewer_memories_than_wanted_count_alike(self) -> None:
        geometry = build_geometry(random(6, 3))
        for eps in CalibratedScales().bandwidths(geometry):
            sizes = geometry.neighborhood(eps).effective_size
            torch.testing.assert_close(sizes, torch.full_like(sizes, 6.0), rtol=1e-5, atol=0)

    def test_grow_with_the_wanted_neighbours(self) -> None:
        geometry = build_geometry(random(30, 3, dtype=torch.float64))
        scales = geometry.kernel_scales([1.5, 3.0, 8.0, 20.0, 29.0, 30.0, 99.0])
        assert scales == sorted(scales)
        assert scales[0] < scales[4] < scales[5] == scales[6]

    @pytest.mark.parametrize("spread", [1e-3, 0.1, 1.0, 10.0])
    def test_take_a_few_looks_from_a_guess_and_a_few_more_without(self, spread: float) -> None:
        rows = random(10, 32).repeat_interleave(30, dim=0) + spread * random(300, 32, seed=1)
        costs = torch.cdist(rows, rows).square()
        wanted, largest = [8.0, 40.0], float(costs.max())
        looks: list[float] = []

        def sizes(eps: float) -> Tensor:
            looks.append(eps)
            return effective_sizes(costs, eps)

        scales = scales_by_sizes(sizes, largest, 300, wanted)
        assert len(looks) <= 20
        for scale, number in zip(scales, wanted, strict=True):
            assert median(effective_sizes(costs, scale.eps)) == pytest.approx(number, rel=HIT)
        looks.clear()
        guesses = [Scale(1.1 * scale.eps, scale.slope) for scale in scales]
        again = scales_by_sizes(sizes, largest, 300, wanted, guesses)
        assert len(looks) <= 8
        for scale, other in zip(scales, again, strict=True):
            assert other.eps == pytest.approx(scale.eps, rel=0.01)

    @given(rows=features(min_size=4), order=st.permutations([1.5, 2.0, 3.0, 1e6]))
    @settings(max_examples=40)
    def test_do_not_depend_on_what_else_is_wanted(self, rows: Tensor, order: list[float]) -> None:
        geometry = build_geometry(rows)
        together = geometry.kernel_scales(order)
        for wanted, scale in zip(order, together, strict=True):
            assert scale == pytest.approx(geometry.kernel_scales([wanted])[0], rel=0.02)

    def test_of_many_scales_with_the_wanted_neighbours_the_least_is_meant(self) -> None:
        pairs = random(10, 4, dtype=torch.float64).repeat_interleave(2, dim=0)
        near = pairs + 1e-6 * random(20, 4, seed=1, dtype=torch.float64)
        scale = build_geometry(near).kernel_scales([2.0])[0]
        assert scale < 1e-8  # pairs are told from others up to scales a million times as wide
        assert build_geometry(pairs).kernel_scales([2.0]) == [0.0]

    @pytest.mark.parametrize("size", [1, 50])
    def test_coincident_memories_have_the_floor(self, size: int) -> None:
        assert CalibratedScales().bandwidths(build_geometry(torch.ones(size, 3))) == (1e-12, 1e-12)

    def test_mostly_coincident_memories_average_among_themselves(self) -> None:
        rows = torch.cat([random(1, 4).repeat(30, 1), random(10, 4, seed=1)])
        increments = random(40, seed=2)
        allocation = allocate(increments, rows, Sphere.calibrated(agreement=0))
        assert allocation.eps_s == 1e-12
        torch.testing.assert_close(allocation.consensus[:30], increments[:30].mean().expand(30))
        torch.testing.assert_close(allocation.consensus[30:], increments[30:])

    def test_refuse_what_cannot_be(self) -> None:
        for neighbors, far in ((0.5, 40.0), (8.0, 4.0), (8.0, torch.inf), (torch.nan, 40.0)):
            with pytest.raises(ValueError, match="expected 1 <= neighbors <= far"):
                CalibratedScales(neighbors, far)
        with pytest.raises(ValueError, match="fraction must be positive"):
            CalibratedScales(fraction=0.0)
        with pytest.raises(ValueError, match="unknown temperature rule 'hot'; known: increments"):
            CalibratedScales(rule="hot")


@pytest.mark.parametrize(
    ("rule", "policy"),
    [
        (TemperatureRule.INCREMENTS, NeighborScales(t_frac=0.7, decay=0.8)),
        (TemperatureRule.SPREAD, SpreadScales(c_beta=0.7)),
        (TemperatureRule.QUANTILE, QuantileScales(1.0, 1.0, fraction=0.7)),
    ],
)
def test_temperatures_are_those_of_the_papers_policies(
    rule: TemperatureRule, policy: NeighborScales
) -> None:
    increments, support = random(30), random(30, seed=1).relu()
    ours = CalibratedScales(fraction=0.7, rule=rule.value, decay=0.8)
    for running_scale in (None, 0.4):
        found = ours.temperature(increments, support, 0.123, running_scale)
        assert found == policy.temperature(increments, support, 1.0, running_scale)
        assert found.value > 0


class TestLeaveOneOut:
    @given(case=scored())
    @settings(max_examples=100)
    def test_agrees_with_loops(self, case: Scored) -> None:
        recipe = Sphere(
            eps_s=case.eps_s,
            eps_t=case.eps_t,
            tau=case.tau,
            distance=Precomputed(),
            leave_one_out=True,
        )
        costs, delta = case.cost.tolist(), case.increments.tolist()
        matrix = reference.leave_one_out_matrix(costs, case.eps_s)
        temperature = case.tau * case.eps_t
        oracle = reference.allocate_with(matrix, costs, delta, case.eps_t, temperature, 0.5)
        largest = max(abs(x) for x in delta)
        assume(all(abs(x) > 1e-9 * largest for x in oracle.consensus))
        ours = allocate(case.increments, case.cost, recipe)
        assert ours.consensus.tolist() == pytest.approx(oracle.consensus, rel=1e-9)
        assert ours.target.tolist() == pytest.approx(oracle.target, rel=1e-9)
        assert ours.weights.tolist() == pytest.approx(oracle.weights, rel=1e-9)
        assert ours.mass == pytest.approx(oracle.mass, rel=1e-9)

    def test_pullback_is_the_transpose_and_keeps_mass(self) -> None:
        rows = random(20, 3, dtype=torch.float64)
        smoother = LeaveOneOutSmoother(build_geometry(rows), 0.2)
        values, others = random_memories(20, 1, seed=3)[1], random(20, seed=4).double()
        forth, back = smoother.average(values), smoother.pull_back(others)
        assert float(forth @ others) == pytest.approx(float(values @ back), rel=ROUNDING)
        assert float(back.sum()) == pytest.approx(float(others.sum()), rel=1e-9)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_memory_without_neighbours_keeps_its_own_increment(self, dtype: torch.dtype) -> None:
        rows = torch.eye(4, dtype=dtype)[[0, 0, 1, 2]]
        smoother = LeaveOneOutSmoother(build_geometry(rows), 1e-12)
        values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
        assert smoother.average(values).tolist() == [2.0, 1.0, 3.0, 4.0]
        assert smoother.pull_back(values).tolist() == [2.0, 1.0, 3.0, 4.0]
        assert smoother.average(torch.zeros(4)).tolist() == [0.0] * 4

    def test_a_single_memory(self) -> None:
        recipe = Sphere.calibrated(leave_one_out=True)
        allocation = allocate(torch.tensor([2.0]), random(1, 3), recipe, labels=torch.tensor([0]))
        assert allocation.consensus.tolist() == [2.0]
        assert allocation.probabilities.tolist() == [1.0]
        assert allocation.backing is not None
        assert allocation.backing.tolist() == [1.0]


class TestRecipe:
    def test_defaults(self) -> None:
        recipe = Sphere.calibrated()
        assert recipe.scales == CalibratedScales(8.0, 40.0, 0.5, "increments")
        assert recipe.distance == Sphere.vision().distance
        assert (recipe.alpha, recipe.agreement, recipe.leave_one_out) == (0.5, 1.0, False)
        assert (recipe.votes, recipe.strength) == ("balanced", "noise")

    def test_everything_can_be_overridden(self) -> None:
        recipe = Sphere.calibrated(
            5, 9, 0.3, rule="spread", distance=Cosine(0.2), alpha=0.2, agreement=0.4,
            votes="balanced", strength="noise", leave_one_out=True, control="no-floor",
        )  # fmt: skip
        assert recipe == Sphere(
            CalibratedScales(5, 9, 0.3, "spread"), distance=Cosine(0.2), alpha=0.2, agreement=0.4,
            votes="balanced", strength="noise", leave_one_out=True, control="no-floor",
        )  # fmt: skip
        assert replace(recipe, control=None).votes == "balanced"

    def test_the_paper_knows_nothing_of_it(self) -> None:
        for recipe in (Sphere.vision(), Sphere.instruct(), Sphere.coding()):
            assert (recipe.agreement, recipe.leave_one_out) == (0.0, False)

    def test_the_running_scale_is_handed_on(self) -> None:
        rows, increments = random(30, 4), random(30, seed=1)
        recipe = Sphere.calibrated(agreement=0)
        first = allocate(increments, rows, recipe)
        second = allocate(3 * increments, rows, recipe, running_scale=first.running_scale)
        assert first.running_scale is not None
        assert second.running_scale == pytest.approx(first.running_scale * (0.9 + 0.3))
        assert second.temperature == pytest.approx(0.5 * first.running_scale * 1.2)
