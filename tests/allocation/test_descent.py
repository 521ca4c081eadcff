"""The replay gradient lowers the prospective risk: the descent theorem on a small classifier."""

import math

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jacrev

from allocation.statements import ROUNDING, value_of_increments
from sphere_replay import Allocation, Sphere, allocate
from strategies import Scored
from tensors import seeded


class Learner:
    """A small classifier at theta_t `[p]`, its stream gradient g_c, and memories to score."""

    eta = 0.5

    def __init__(self, seed: int) -> None:
        generator = seeded(seed)

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
