"""V_OT and Π*: the properties proved with the transport gradient, and the closed form itself."""

import math
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import softmax
from torch import Tensor

import reference
from allocation.statements import ROUNDING, geometry_of, transport_value
from sphere_replay.allocation.transport import LARGEST_EXPONENT, Transport, transport
from strategies import Problem, numbers, problems, vectors

Floats = npt.NDArray[np.float64]


def solve(problem: Problem, risk: Tensor | None = None) -> Transport:
    geometry = geometry_of(problem.cost)
    risk = problem.risk if risk is None else risk
    return transport(geometry, problem.eps_t, problem.temperature, risk)


def value_of(problem: Problem, risk: Tensor | None = None) -> float:
    return float(solve(problem, risk).value)


def plan_of(problem: Problem) -> reference.Square:
    return reference.transport(
        problem.risk.tolist(), problem.cost.tolist(), problem.eps_t, problem.temperature
    )[0]


def objective_at(problem: Problem, plan: reference.Mat) -> float:
    tau = problem.temperature / problem.eps_t
    return reference.objective(
        plan, problem.risk.tolist(), problem.cost.tolist(), problem.eps_t, tau
    )


@st.composite
def problems_and_risk(draw: st.DrawFn, low: float = -5.0) -> tuple[Problem, Tensor]:
    problem = draw(problems())
    return problem, draw(vectors(len(problem.risk), low, 5))


@given(problems_and_risk())
@settings(max_examples=100)
def test_value_is_convex_at_midpoints(case: tuple[Problem, Tensor]) -> None:
    problem, other = case
    middle = value_of(problem, (problem.risk + other) / 2)
    ends = (value_of(problem) + value_of(problem, other)) / 2
    assert middle <= ends + ROUNDING


@given(problems_and_risk(low=0.0))
@settings(max_examples=100)
def test_value_does_not_fall_when_a_risk_rises(case: tuple[Problem, Tensor]) -> None:
    problem, rise = case
    assert value_of(problem, problem.risk + rise) >= value_of(problem) - ROUNDING


@given(problems(), numbers(-100, 100))
@settings(max_examples=100)
def test_value_is_translation_equivariant(problem: Problem, shift: float) -> None:
    shifted = solve(problem, problem.risk + shift)
    here = solve(problem)
    assert float(shifted.value) == pytest.approx(float(here.value) + shift, abs=ROUNDING)
    torch.testing.assert_close(shifted.target, here.target, rtol=0, atol=ROUNDING)


@given(problems_and_risk())
@settings(max_examples=100)
def test_value_is_one_lipschitz_in_the_largest_difference(case: tuple[Problem, Tensor]) -> None:
    problem, other = case
    farthest = float((problem.risk - other).abs().max())
    assert abs(value_of(problem) - value_of(problem, other)) <= farthest + ROUNDING


@given(problems())
@settings(max_examples=100)
def test_target_is_the_gradient_of_the_value(problem: Problem) -> None:
    risk = problem.risk.clone().requires_grad_()
    tau = problem.temperature / problem.eps_t
    value = transport_value(risk, problem.cost, problem.eps_t, tau)
    (gradient,) = torch.autograd.grad(value, risk)
    solved = solve(problem)
    assert float(solved.value) == pytest.approx(value.item(), abs=ROUNDING)
    torch.testing.assert_close(solved.target, gradient, rtol=0, atol=ROUNDING)


@given(problems())
@settings(max_examples=100)
def test_target_is_a_probability_vector(problem: Problem) -> None:
    target = solve(problem).target
    assert bool((target >= 0).all())
    assert float(target.sum()) == pytest.approx(1, abs=ROUNDING)


@given(problems())
@settings(max_examples=100)
def test_closed_form_plan_attains_the_value_and_has_the_target_as_its_rows(
    problem: Problem,
) -> None:
    plan = plan_of(problem)
    size = len(plan)
    solved = solve(problem)
    for source in range(size):
        assert math.fsum(row[source] for row in plan) == pytest.approx(1 / size, abs=1e-14)
    assert objective_at(problem, plan) == pytest.approx(float(solved.value), abs=ROUNDING)
    rows = torch.tensor([math.fsum(row) for row in plan], dtype=torch.float64)
    torch.testing.assert_close(solved.target, rows, rtol=0, atol=ROUNDING)


@given(problems(min_size=2, max_size=4), st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_no_plan_an_optimiser_finds_is_worth_more(problem: Problem, seed: int) -> None:
    size = len(problem.risk)
    value = value_of(problem)
    rng = np.random.default_rng(seed)
    tau = problem.temperature / problem.eps_t
    net = problem.risk.numpy()[:, None] - tau * problem.cost.numpy()

    def loss(logits: Floats) -> tuple[float, Floats]:
        """The objective at the plan whose columns are softmaxes of the logits, and its slope."""
        columns = softmax(logits.reshape(size, size), axis=0)
        slope = net - problem.temperature * (np.log(np.maximum(size * columns, 1e-300)) + 1)
        slope = columns / size * (slope - (columns * slope).sum(axis=0))
        return -objective_at(problem, (columns / size).tolist()), -slope.ravel()

    starts = [np.zeros(size * size), *rng.normal(scale=2, size=(2, size * size))]
    found = [-float(minimize(loss, start, jac=True, method="L-BFGS-B").fun) for start in starts]
    corner = np.zeros((size, size))
    corner[rng.integers(size, size=size), range(size)] = 1 / size
    assert max(*found, objective_at(problem, corner.tolist())) <= value + 1e-8
    # The optimiser is a real competitor: from somewhere it comes close.
    assert max(found) >= value - 1e-4 * max(1.0, problem.temperature)


@given(problems())
@settings(max_examples=100)
def test_log_domain_agrees_with_products(problem: Problem) -> None:
    apart = float(problem.risk.max() - problem.risk.min()) / problem.temperature
    assume(apart <= LARGEST_EXPONENT[torch.float64])  # beyond it there is only one path
    by_products = solve(problem)
    with mock.patch.dict(LARGEST_EXPONENT, {torch.float64: -1.0}):
        in_logs = solve(problem)
    torch.testing.assert_close(by_products.target, in_logs.target, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(by_products.value, in_logs.value, rtol=0, atol=ROUNDING)


def test_the_two_paths_are_chosen_by_the_threshold() -> None:
    geometry = geometry_of(torch.zeros(2, 2, dtype=torch.float64))
    risk = torch.tensor([0.0, 1.0], dtype=torch.float64)
    limit = LARGEST_EXPONENT[torch.float64]
    with mock.patch.object(geometry, "apply_log_kernel", wraps=geometry.apply_log_kernel) as logs:
        transport(geometry, 1.0, 1.01 / limit, risk)
        assert logs.call_count == 0
        transport(geometry, 1.0, 0.99 / limit, risk)
        assert logs.call_count == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-1, 1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("apart", [1, 1000], ids=["near", "isolated"])
def test_risks_many_temperatures_apart_match_the_reference(
    dtype: torch.dtype, temperature: float, apart: float
) -> None:
    cost = apart * torch.tensor([[0, 1, 4], [1, 0, 2], [4, 2, 0]], dtype=dtype)
    risk = torch.tensor([0.0, 3.0, 2.5], dtype=torch.float64)
    solved = transport(geometry_of(cost), 0.5, temperature, risk)
    _, target, value = reference.transport(risk.tolist(), cost.tolist(), 0.5, temperature)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    expected = torch.tensor(target, dtype=torch.float64)
    torch.testing.assert_close(solved.target, expected, rtol=tolerance, atol=1e-300)
    assert float(solved.value) == pytest.approx(value, abs=tolerance)


@given(problems())
@settings(max_examples=40)
def test_without_temperature_nothing_moves_and_the_largest_risk_is_the_value(
    problem: Problem,
) -> None:
    geometry = geometry_of(problem.cost)
    still = transport(geometry, problem.eps_t, 0.0, problem.risk)
    size = len(problem.risk)
    assert still.target.tolist() == [1 / size] * size
    assert float(still.value) == float(problem.risk.max())
    # It is the limit: at temperature T the value is short of it by T (log m + C/eps_T) at most.
    slack = math.log(size) + float(problem.cost.max()) / problem.eps_t
    for temperature in (problem.temperature, 1e-3, 1e-9):
        warm = float(transport(geometry, problem.eps_t, temperature, problem.risk).value)
        assert warm <= float(still.value) + ROUNDING
        assert warm >= float(still.value) - temperature * slack - ROUNDING
