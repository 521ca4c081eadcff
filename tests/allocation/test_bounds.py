"""The diagnostics' bounds hold: estimation (Prop. 1), inflation (Thm. 1), mass of a region.

Where a test estimates an expectation by drawing residuals (seeded), four standard errors are
granted to the estimate, and to nothing else.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from allocation.statements import (
    ROUNDING,
    allocate_case,
    geometry_of,
    smoothing_matrix,
    transport_value,
)
from sphere_replay import Sphere, allocate
from sphere_replay.allocation.diagnostics import (
    consensus_beats_raw,
    estimation_bounds,
    regional_mass_bound,
    transport_inflation_bound,
)
from sphere_replay.geometry import Geometry, Precomputed
from strategies import Scored, costs, magnitudes, numbers, scored, vectors
from tensors import random, standard_error


def smooth(geometry: Geometry, eps_s: float, values: Tensor) -> Tensor:
    """S values, `[m, n]` to `[m, n]`, by the library's kernel products."""
    mass = geometry.apply_kernel(eps_s, torch.ones(geometry.size, 1, dtype=torch.float64))
    return geometry.apply_kernel(eps_s, values) / mass


@st.composite
def fields(draw: st.DrawFn) -> tuple[Tensor, Tensor, float]:
    """Costs, a mean response and its exact Lipschitz constant (coincident points share it)."""
    points = draw(vectors(draw(st.integers(2, 8)), -2, 2))
    points = (points * 8).round() / 8
    cost = (points[:, None] - points).abs()
    field = draw(numbers(-3, 3)) * points.sin() + draw(numbers(-1, 1)) * points.square()
    slopes = (field[:, None] - field).abs() / cost
    return cost, field, float(slopes[cost > 0].max()) if bool((cost > 0).any()) else 0.0


def noisy_line(slope: float, size: int = 12) -> tuple[Tensor, Tensor]:
    """Distances of points on a line, and a response with the given Lipschitz constant."""
    points = torch.linspace(-1, 1, size, dtype=torch.float64)
    return (points[:, None] - points).abs(), slope * (points.abs() - 0.3)


def residuals(size: int, draws: int, noise: float, seed: int = 0) -> Tensor:
    """Gaussian, hence exactly `noise`-sub-Gaussian: `[size, draws]`."""
    return noise * random(size, draws, seed=seed, dtype=torch.float64)


class TestEstimation:
    @given(fields(), magnitudes(-1, 1), magnitudes(-1, 1))
    @settings(max_examples=60)
    def test_bias_and_error_stay_within_proposition_1(
        self, case: tuple[Tensor, Tensor, float], eps_s: float, noise: float
    ) -> None:
        cost, field, lipschitz = case
        geometry = geometry_of(cost)
        bounds = estimation_bounds(geometry, eps_s, lipschitz=lipschitz, noise=noise)
        bias = smooth(geometry, eps_s, field[:, None])[:, 0] - field  # E[S delta] = S F
        variance = noise**2 * smoothing_matrix(cost, eps_s).square().sum(dim=1)
        assert bool((bias.abs() <= bounds.bias + ROUNDING).all())
        assert bool((bias.square() + variance <= bounds.mean_squared_error + ROUNDING).all())

    @pytest.mark.parametrize("eps_s", [0.05, 0.5, 5.0])
    def test_empirical_error_of_the_clipped_consensus_stays_within_proposition_1(
        self, eps_s: float
    ) -> None:
        cost, field, noise = *noisy_line(slope=0.7), 0.5
        geometry = geometry_of(cost)
        bounds = estimation_bounds(geometry, eps_s, lipschitz=0.7, noise=noise)
        draws = 20_000
        consensus = smooth(geometry, eps_s, field[:, None] + residuals(len(field), draws, noise))
        for error in (consensus - field[:, None], consensus.relu() - field.relu()[:, None]):
            squared = error.square()
            uncertainty = 4 * squared.std(dim=1) / math.sqrt(draws)
            assert bool((squared.mean(dim=1) <= bounds.mean_squared_error + uncertainty).all())

    @given(st.data(), st.integers(1, 7), magnitudes(-1, 1))
    @settings(max_examples=60)
    def test_consensus_beats_raw_exactly_where_its_error_is_smaller(
        self, data: st.DataObject, size: int, eps_s: float
    ) -> None:
        cost, field = data.draw(costs(size)), data.draw(vectors(size, -1, 1))
        variances = data.draw(vectors(size, 0.01, 3))
        smoothing = smoothing_matrix(cost, eps_s)
        error = (smoothing @ field - field).square() + smoothing.square() @ variances
        ours = consensus_beats_raw(geometry_of(cost), eps_s, field=field, variances=variances)
        theirs = reference.consensus_beats_raw(
            smoothing.tolist(), field.tolist(), variances.tolist()
        )
        decided = (error - variances).abs() > 1e-9
        assert ours[decided].tolist() == (error < variances)[decided].tolist()
        assert ours[decided].tolist() == torch.tensor(theirs)[decided].tolist()

    def test_consensus_beats_raw_is_not_a_matter_of_numbers_alone(self) -> None:
        cost = torch.zeros(4, 4, dtype=torch.float64)
        variances = torch.ones(4, dtype=torch.float64)
        for slope, wins in ((0.1, True), (3.0, False)):
            field = slope * torch.tensor([-1.0, -1, 1, 1], dtype=torch.float64)
            better = consensus_beats_raw(geometry_of(cost), 1.0, field=field, variances=variances)
            assert better.tolist() == [wins] * 4

    @pytest.mark.parametrize("size", [1, 4, 16])
    def test_regional_average_concentrates_with_the_size_of_the_region(self, size: int) -> None:
        cost = torch.full((size + 3, size + 3), 1e3, dtype=torch.float64).fill_diagonal_(0)
        cost[:size, :size] = 0
        noise, draws = 0.5, 20_000
        deviation = smooth(geometry_of(cost), 0.1, residuals(size + 3, draws, noise))[0].abs()
        for factor in (1.0, 1.5, 2.0, 2.5):
            x = factor * noise / math.sqrt(size)
            tail = float((deviation >= x).double().mean())
            assert tail <= 2 * math.exp(-size * x**2 / (2 * noise**2))
            assert tail >= math.erfc(factor / math.sqrt(2)) / 2  # and the region is really there


@dataclass(frozen=True)
class Inflation:
    """How far noise lifts the value on a line of slope L_F; noise 0.5, eps 0.3."""

    slope: float
    risen: dict[float, Tensor]
    """Per temperature, draws of V_OT([S delta]_+) - V_OT([F]_+)."""

    def bound(self, **form: float) -> float:
        geometry = geometry_of(noisy_line(self.slope)[0])
        return transport_inflation_bound(geometry, 0.3, lipschitz=self.slope, noise=0.5, **form)


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["flat", "sloping"])
def inflation(request: pytest.FixtureRequest) -> Inflation:
    slope = float(request.param)
    cost, field = noisy_line(slope)
    risen = {}
    for temperature in (0.02, 0.2):
        recipe = Sphere(eps_s=0.3, eps_t=0.3, tau=temperature / 0.3, distance=Precomputed())
        truth = transport_value(field.relu(), cost, 0.3, temperature / 0.3).item()
        drawn = (field[:, None] + residuals(len(field), 1000, 0.5)).T
        geometry = geometry_of(cost)
        risen[temperature] = torch.tensor(
            [allocate(delta, geometry, recipe).value - truth for delta in drawn]
        )
    return Inflation(slope, risen)


class TestInflation:
    def test_expected_value_stays_within_theorem_1(self, inflation: Inflation) -> None:
        for risen in inflation.risen.values():
            uncertainty = 4 * standard_error(risen)
            assert float(risen.mean()) + uncertainty <= inflation.bound()
            if inflation.slope == 0:  # without the noise term the statement would be wrong
                assert float(risen.mean()) - uncertainty > 0

    def test_temperature_form_holds_and_is_the_sharper_one_where_it_should_be(
        self, inflation: Inflation
    ) -> None:
        for temperature, risen in inflation.risen.items():
            bound = inflation.bound(temperature=temperature)
            assert float(risen.mean()) + 4 * standard_error(risen) <= bound
            assert (bound < inflation.bound()) == (temperature == 0.2)

    @pytest.mark.parametrize("failure", [0.5, 0.1, 0.01])
    def test_deviation_form_fails_at_most_as_often_as_stated(
        self, inflation: Inflation, failure: float
    ) -> None:
        for risen in inflation.risen.values():
            assert float((risen > inflation.bound(failure=failure)).double().mean()) <= failure

    @given(scored(), magnitudes(-2, 2), magnitudes(-2, 2), numbers(0.001, 0.999))
    @settings(max_examples=60)
    def test_diagnostics_agree_with_the_reference(
        self, case: Scored, lipschitz: float, noise: float, failure: float
    ) -> None:
        geometry, temperature = geometry_of(case.cost), case.tau * case.eps_t
        smoothing = reference.smoothing_matrix(case.cost.tolist(), case.eps_s)
        setting = (smoothing, case.cost.tolist(), lipschitz, noise)
        ours = estimation_bounds(geometry, case.eps_s, lipschitz=lipschitz, noise=noise)
        pairs = zip(ours.bias.tolist(), ours.mean_squared_error.tolist(), strict=True)
        for our, their in zip(pairs, reference.estimation_bounds(*setting), strict=True):
            assert our == pytest.approx(their, rel=ROUNDING)

        def bound(**form: float) -> float:
            return transport_inflation_bound(
                geometry, case.eps_s, lipschitz=lipschitz, noise=noise, **form
            )

        expected = sum(reference.transport_noise_bound(*setting))
        assert bound() == pytest.approx(expected, rel=ROUNDING)
        sharp = sum(reference.transport_noise_bound_temperature(*setting, temperature))
        assert bound(temperature=temperature) == pytest.approx(sharp, rel=ROUNDING)
        likely = sum(reference.transport_noise_bound(*setting, failure))
        assert bound(failure=failure) == pytest.approx(likely, rel=ROUNDING)


class TestRegion:
    @given(st.data(), st.integers(1, 5), st.integers(1, 5), numbers(0.5, 4), magnitudes(-1, 1))
    @settings(max_examples=60)
    def test_keeps_the_mass_that_the_regional_bound_promises(
        self, data: st.DataObject, inside: int, outside: int, apart: float, eps_t: float
    ) -> None:
        size = inside + outside
        cost = torch.full((size, size), apart, dtype=torch.float64)
        cost[:inside, :inside] = 0.1 * data.draw(costs(inside))
        cost[inside:, inside:] = 0.1 * data.draw(costs(outside))
        delta = torch.cat(
            [data.draw(vectors(inside, 0.5, 1.5)), data.draw(vectors(outside, -1, 0.5))]
        )
        tau = data.draw(magnitudes(-1, 0))
        allocation = allocate_case(Scored(delta, cost, 0.2, eps_t, tau))
        net = allocation.support[:, None] - tau * cost
        gap = float((net[:inside, :inside].amin(0) - net[inside:, :inside].amax(0)).min())
        assume(gap > 1e-6)  # the premise
        bound = regional_mass_bound(size, inside, gap, tau * eps_t)
        assert float(allocation.target[:inside].sum()) >= bound - ROUNDING
        assert bound < inside / size or bound == pytest.approx(inside / size)
        theirs = reference.regional_mass_bound(size, inside, gap, tau * eps_t)
        assert bound == pytest.approx(theirs, rel=ROUNDING)
