"""The paper's statements, one test each, against the library: Sections 3 and 4, appendices A to G.

What is exact is compared to rounding. Where a test estimates an expectation by drawing residuals
(seeded), four standard errors are granted to the estimate, and to nothing else.
"""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, jacrev

import reference
from sphere_replay import Allocation, Sphere, allocate
from sphere_replay.allocation.diagnostics import (
    consensus_beats_raw,
    estimation_bounds,
    regional_mass_bound,
    transport_inflation_bound,
)
from sphere_replay.geometry import Geometry, Precomputed, build_geometry
from strategies import (
    Scored,
    costs,
    examples,
    increments,
    magnitudes,
    numbers,
    scored,
    scored_features,
    vectors,
)

ROUNDING = 1e-10
RECIPES = {
    "vision": Sphere.vision(),
    "vision-narrow": Sphere.vision(k_s=1, k_t=2, t_frac=1.0, alpha=0.85),
    "instruct": Sphere.instruct(),
    "coding": Sphere.coding(),
    "coding-own-scale": Sphere.coding(d0=None, alpha=0.7),
}
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())


def smoothing_matrix(cost: Tensor, eps_s: float) -> Tensor:
    kernel = (-cost / eps_s).exp()
    return kernel / kernel.sum(dim=1, keepdim=True)


def transport_value(risk: Tensor, cost: Tensor, eps_t: float, tau: float) -> Tensor:
    """Eq. soft-transport-logsumexp."""
    temperature = tau * eps_t
    net = (risk[:, None] - tau * cost) / temperature
    return temperature * (torch.logsumexp(net, dim=0) - math.log(len(risk))).mean()


def value_of_increments(delta: Tensor, case: Scored) -> Tensor:
    """V_OT([S delta]_+) in plain torch."""
    risk = (smoothing_matrix(case.cost, case.eps_s) @ delta).relu()
    return transport_value(risk, case.cost, case.eps_t, case.tau)


def allocate_case(case: Scored, alpha: float = 0.5) -> Allocation:
    recipe = Sphere(
        eps_s=case.eps_s, eps_t=case.eps_t, tau=case.tau, alpha=alpha, distance=Precomputed()
    )
    return allocate(case.increments, case.cost, recipe)


def assume_decided(allocation: Allocation, delta: Tensor) -> None:
    """Leave out what rounding decides: a consensus, or a temperature, that is zero but for it."""
    largest = float(delta.abs().max())
    assume(bool((allocation.consensus.abs() > 1e-9 * largest).all()))
    assume(allocation.temperature == 0 or allocation.temperature > 1e-6 * largest)


class TestSensitivity:
    @given(scored())
    @examples(60)
    def test_is_the_gradient_of_the_value_in_the_increments(self, case: Scored) -> None:
        allocation = allocate_case(case)
        assume_decided(allocation, case.increments)
        delta = case.increments.clone().requires_grad_()
        value = value_of_increments(delta, case)
        (gradient,) = torch.autograd.grad(value, delta)
        assert allocation.value == pytest.approx(value.item(), abs=ROUNDING)
        torch.testing.assert_close(allocation.sensitivity, gradient, rtol=0, atol=ROUNDING)

    @given(st.data(), scored())
    @examples(60)
    def test_is_a_subgradient_even_where_a_consensus_is_zero(
        self, data: st.DataObject, case: Scored
    ) -> None:
        other = data.draw(increments(len(case.increments), -1, 1))
        allocation = allocate_case(case)
        change = value_of_increments(other, case).item() - allocation.value
        linear = float(allocation.sensitivity @ (other - case.increments))
        assert change >= linear - ROUNDING

    @given(scored())
    @examples(60)
    def test_is_not_negative_and_sums_to_the_supported_target_mass(self, case: Scored) -> None:
        allocation = allocate_case(case)
        supported = float(allocation.target[allocation.consensus > 0].sum())
        assert bool((allocation.sensitivity >= 0).all())
        assert float(allocation.sensitivity.sum()) == pytest.approx(supported, abs=ROUNDING)
        assert supported <= 1 + ROUNDING

    @given(scored())
    @examples(60)
    def test_and_everything_else_agrees_with_the_reference(self, case: Scored) -> None:
        ours = allocate_case(case)
        theirs = reference.allocate(
            case.cost.tolist(),
            case.increments.tolist(),
            case.eps_s,
            case.eps_t,
            case.tau * case.eps_t,
            alpha=0.5,
        )
        assume_decided(ours, case.increments)
        assert ours.value == pytest.approx(theirs.value, abs=ROUNDING)
        assert ours.mass == pytest.approx(theirs.mass, abs=ROUNDING)
        for name in ("consensus", "support", "target", "sensitivity", "weights", "probabilities"):
            assert getattr(ours, name).tolist() == pytest.approx(getattr(theirs, name), abs=1e-9)


class TestBlend:
    @each_recipe
    @given(scored_features())
    @examples(30)
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
    @examples(30)
    def test_allocation_follows_a_permutation_of_the_memories(
        self, recipe: Sphere, case: tuple[Tensor, Tensor], seed: int
    ) -> None:
        delta, features = case
        order = torch.randperm(len(delta), generator=torch.Generator().manual_seed(seed))
        here = allocate(delta, features, recipe)
        assume_decided(here, delta)
        there = allocate(delta[order], features[order], recipe)
        assert there.value == pytest.approx(here.value, rel=1e-7)
        for name in ("weights", "probabilities", "target", "sensitivity"):
            moved = getattr(here, name)[order]
            torch.testing.assert_close(getattr(there, name), moved, rtol=1e-6, atol=1e-9)

    @each_recipe
    @given(scored_features(), magnitudes(-6, 6))
    @examples(30)
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
        generator = torch.Generator().manual_seed(0)
        for _ in range(50):
            group = torch.rand(4, generator=generator, dtype=torch.float64)
            delta = torch.cat([group, group[torch.randperm(4, generator=generator)]])
            allocation = allocate(delta, features, Sphere.instruct())
            assert allocation.weights.tolist() == pytest.approx([allocation.mass / 8] * 8)
            assert allocation.mass == pytest.approx(0.5)


class TestConsensus:
    @given(scored())
    @examples(60)
    def test_smoothing_before_clipping_is_at_most_clipping_before_smoothing(
        self, case: Scored
    ) -> None:
        clipped = Scored(case.increments.relu(), case.cost, case.eps_s, case.eps_t, case.tau)
        first_clipped = allocate_case(clipped).consensus
        assert bool((allocate_case(case).support <= first_clipped + ROUNDING).all())

    @given(scored())
    @examples(60)
    def test_is_the_neighbours_answer_plus_a_contracted_deviation(self, case: Scored) -> None:
        allocation = allocate_case(case)
        kernel = (-case.cost / case.eps_s).exp().fill_diagonal_(0)
        mass = kernel.sum(dim=1)  # n_i
        for i, delta in enumerate(case.increments.tolist()):
            n = float(mass[i])
            consensus, support = float(allocation.consensus[i]), float(allocation.support[i])
            if n == 0:
                assert consensus == pytest.approx(delta, abs=ROUNDING)
                continue
            answer = float(kernel[i] @ case.increments) / n  # a_i
            assert consensus == pytest.approx(answer + (delta - answer) / (1 + n), abs=1e-9)
            if delta > 0 and answer <= 0:
                assert support <= delta / (1 + n) + ROUNDING

    @given(scored())
    @examples(30)
    def test_neighbourhood_is_at_least_as_large_as_its_kernel_mass(self, case: Scored) -> None:
        around = geometry_of(case.cost).neighborhood(case.eps_s)
        assert bool((1 / around.effective_size <= 1 / around.mass + ROUNDING).all())
        allocation = allocate_case(case)
        squares = smoothing_matrix(case.cost, case.eps_s).square().sum(dim=1)
        torch.testing.assert_close(allocation.effective_neighbors, 1 / squares)

    @given(
        st.integers(2, 6), numbers(0.1, 10), numbers(0.01, 0.99), numbers(0.1, 5), numbers(0.1, 5)
    )
    @examples(60)
    def test_coherent_group_overtakes_a_larger_lone_spike(
        self, size: int, rise: float, between: float, apart: float, eps_s: float
    ) -> None:
        spike = rise + between * (size - 1) * rise  # a < b < k a
        delta = torch.zeros(2 * size, dtype=torch.float64)
        delta[0], delta[size:] = spike, rise
        cost = torch.zeros(2 * size, 2 * size, dtype=torch.float64)
        cost[:size, size:] = cost[size:, :size] = apart
        support = allocate_case(Scored(delta, cost, eps_s, 1.0, 1.0)).support
        at_spike, in_group = reference.two_group(size, rise, spike, apart, eps_s)
        assert delta[0] > delta[-1]
        assert support[0] < support[-1]
        assert support.tolist() == pytest.approx([at_spike] * size + [in_group] * size, rel=1e-12)


def geometry_of(cost: Tensor) -> Geometry:
    return build_geometry(cost, Precomputed())


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


class TestEstimation:
    @given(fields(), magnitudes(-1, 1), magnitudes(-1, 1))
    @examples(60)
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
    @examples(60)
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


def noisy_line(slope: float, size: int = 12) -> tuple[Tensor, Tensor]:
    """Distances of points on a line, and a response with the given Lipschitz constant."""
    points = torch.linspace(-1, 1, size, dtype=torch.float64)
    return (points[:, None] - points).abs(), slope * (points.abs() - 0.3)


def residuals(size: int, draws: int, noise: float, seed: int = 0) -> Tensor:
    """Gaussian, hence exactly `noise`-sub-Gaussian: `[size, draws]`."""
    generator = torch.Generator().manual_seed(seed)
    return noise * torch.randn(size, draws, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["flat", "sloping"])
def inflation(request: pytest.FixtureRequest) -> tuple[float, dict[float, Tensor]]:
    """L_F, and per temperature draws of V_OT([S delta]_+) - V_OT([F]_+); noise 0.5, eps 0.3."""
    slope = float(request.param)
    cost, field = noisy_line(slope)
    values = {}
    for temperature in (0.02, 0.2):
        recipe = Sphere(eps_s=0.3, eps_t=0.3, tau=temperature / 0.3, distance=Precomputed())
        truth = transport_value(field.relu(), cost, 0.3, temperature / 0.3).item()
        drawn = (field[:, None] + residuals(len(field), 1000, 0.5)).T
        geometry = geometry_of(cost)
        values[temperature] = torch.tensor(
            [allocate(delta, geometry, recipe).value - truth for delta in drawn]
        )
    return slope, values


class TestInflation:
    def test_expected_value_stays_within_theorem_1(
        self, inflation: tuple[float, dict[float, Tensor]]
    ) -> None:
        slope, values = inflation
        geometry = geometry_of(noisy_line(slope)[0])
        bound = transport_inflation_bound(geometry, 0.3, lipschitz=slope, noise=0.5)
        for risen in values.values():
            uncertainty = 4 * float(risen.std()) / math.sqrt(len(risen))
            assert float(risen.mean()) + uncertainty <= bound
            if slope == 0:  # without the noise term the statement would be wrong
                assert float(risen.mean()) - uncertainty > 0

    def test_temperature_form_holds_and_is_the_sharper_one_where_it_should_be(
        self, inflation: tuple[float, dict[float, Tensor]]
    ) -> None:
        slope, values = inflation
        geometry = geometry_of(noisy_line(slope)[0])
        plain = transport_inflation_bound(geometry, 0.3, lipschitz=slope, noise=0.5)
        for temperature, risen in values.items():
            bound = transport_inflation_bound(
                geometry, 0.3, lipschitz=slope, noise=0.5, temperature=temperature
            )
            uncertainty = 4 * float(risen.std()) / math.sqrt(len(risen))
            assert float(risen.mean()) + uncertainty <= bound
            assert (bound < plain) == (temperature == 0.2)

    @pytest.mark.parametrize("failure", [0.5, 0.1, 0.01])
    def test_deviation_form_fails_at_most_as_often_as_stated(
        self, inflation: tuple[float, dict[float, Tensor]], failure: float
    ) -> None:
        slope, values = inflation
        geometry = geometry_of(noisy_line(slope)[0])
        bound = transport_inflation_bound(
            geometry, 0.3, lipschitz=slope, noise=0.5, failure=failure
        )
        for risen in values.values():
            assert float((risen > bound).double().mean()) <= failure

    @given(scored(), magnitudes(-2, 2), magnitudes(-2, 2), numbers(0.001, 0.999))
    @examples(60)
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
    @examples(60)
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


class Learner:
    """A small classifier at theta_t `[p]`, its stream gradient g_c, and memories to score."""

    eta = 0.5

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        def labels(count: int) -> Tensor:
            return torch.randint(2, (count,), generator=generator)

        layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
        self.network = torch.nn.Sequential(*layers).double()
        self.shapes = {name: p.shape for name, p in self.network.named_parameters()}
        self.theta = normal(sum(math.prod(shape) for shape in self.shapes.values()))
        self.memory, stream = (normal(10, 3), labels(10)), (normal(6, 3), labels(6))
        self.g_c = jacrev(lambda theta: self.losses(theta, stream).mean())(self.theta)
        unit = self.memory[0] / self.memory[0].norm(dim=1, keepdim=True)
        cost = (unit[:, None] - unit).square().sum(dim=2)
        self.case = Scored(self.increments(self.g_c), cost, eps_s=0.2, eps_t=0.5, tau=0.2)
        self.allocation = self.allocate(self.g_c)
        self.at_theta = self.gradients(self.theta)
        self.at_virtual = self.gradients(self.theta - self.eta * self.g_c)
        self.g_sc = self.allocation.sensitivity @ self.at_virtual  # g_SC^v

    def losses(self, theta: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
        parts = torch.split(theta, [math.prod(shape) for shape in self.shapes.values()])
        named = zip(self.shapes.items(), parts, strict=True)
        parameters = {name: part.view(shape) for (name, shape), part in named}
        logits = functional_call(self.network, parameters, (data[0],))
        return torch.nn.functional.cross_entropy(logits, data[1], reduction="none")

    def gradients(self, theta: Tensor) -> Tensor:
        """Each memory's gradient, `[m, p]`."""
        rows: Tensor = jacrev(lambda theta: self.losses(theta, self.memory))(theta)
        return rows

    def increments(self, g: Tensor) -> Tensor:
        virtual = self.losses(self.theta - self.eta * g, self.memory)
        return virtual - self.losses(self.theta, self.memory)

    def allocate(self, g: Tensor) -> Allocation:
        case = self.case
        recipe = Sphere(eps_s=case.eps_s, eps_t=case.eps_t, tau=case.tau, alpha=0.9)
        return allocate(self.increments(g), self.memory[0], recipe)

    def psi(self, g: Tensor) -> Tensor:
        """Psi(g) = V_OT([S delta(g)]_+) in plain torch."""
        return value_of_increments(self.increments(g), self.case)


@pytest.fixture(params=range(4))
def learner(request: pytest.FixtureRequest) -> Learner:
    learner = Learner(int(request.param))
    consensus = learner.allocation.consensus
    assert bool((consensus.abs() > 1e-4).all()), "the theorem's premise"
    assert bool((consensus > 0).any()), "something must be at risk"
    return learner


class TestDescent:
    def test_the_gradient_of_the_prospective_risk_is_the_replay_gradient(
        self, learner: Learner
    ) -> None:
        gradient = jacrev(learner.psi)(learner.g_c)
        torch.testing.assert_close(gradient, -learner.eta * learner.g_sc, rtol=0, atol=ROUNDING)

    def test_the_slope_toward_the_replay_gradient_is_its_square(self, learner: Learner) -> None:
        step = 1e-5 * learner.g_sc / learner.g_sc.norm()
        ahead, behind = (learner.allocate(learner.g_c + sign * step).value for sign in (1, -1))
        slope = (ahead - behind) / 2e-5 * float(learner.g_sc.norm())
        assert slope == pytest.approx(-learner.eta * float(learner.g_sc.square().sum()), rel=1e-6)

    def test_a_finite_step_descends_as_far_as_the_curvature_allows(self, learner: Learner) -> None:
        longest = 0.05
        segment = [learner.g_c + part * learner.g_sc for part in torch.linspace(0, longest, 11)]
        signs = [learner.allocate(g).consensus > 0 for g in segment]
        assert all(bool((sign == signs[0]).all()) for sign in signs), "smooth on the segment"
        curvature = max(
            float(torch.linalg.matrix_norm(jacrev(jacrev(learner.psi))(g), 2)) for g in segment
        )
        curvature *= 1.05  # for what lies between the eleven points
        for beta in (longest, longest / 10, longest / 100):
            assert beta < 2 * learner.eta / curvature
            promised = (beta * learner.eta - curvature * beta**2 / 2) * learner.g_sc.square().sum()
            reached = learner.allocate(learner.g_c + beta * learner.g_sc).value
            assert reached <= learner.allocation.value - float(promised)
            assert promised > 0

    def test_the_implemented_direction_obeys_its_bound(self, learner: Learner) -> None:
        implemented = learner.allocation.weights @ learner.at_theta
        slope = float(jacrev(learner.psi)(learner.g_c) @ implemented)
        # The gradients' Lipschitz constant between the two points that the proof compares.
        moved = learner.eta * float(learner.g_c.norm())
        lipschitz = float((learner.at_theta - learner.at_virtual).norm(dim=1).max()) / moved
        virtual, uniform = float(learner.g_sc.norm()), float(learner.at_theta.mean(dim=0).norm())
        bracket = 0.9 * (virtual - moved * lipschitz) - 0.1 * uniform
        assert slope <= -learner.eta * virtual * bracket + ROUNDING
