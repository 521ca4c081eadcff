"""The consensus S delta: what smoothing does to a lone increment, and to one that others share."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from allocation.statements import ROUNDING, allocate_case, geometry_of, smoothing_matrix
from strategies import Scored, numbers, scored


class TestConsensus:
    @given(scored())
    @settings(max_examples=60)
    def test_smoothing_before_clipping_is_at_most_clipping_before_smoothing(
        self, case: Scored
    ) -> None:
        clipped = Scored(case.increments.relu(), case.cost, case.eps_s, case.eps_t, case.tau)
        first_clipped = allocate_case(clipped).consensus
        assert bool((allocate_case(case).support <= first_clipped + ROUNDING).all())

    @given(scored())
    @settings(max_examples=60)
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
    @settings(max_examples=30)
    def test_neighbourhood_is_at_least_as_large_as_its_kernel_mass(self, case: Scored) -> None:
        around = geometry_of(case.cost).neighborhood(case.eps_s)
        assert bool((1 / around.effective_size <= 1 / around.mass + ROUNDING).all())
        allocation = allocate_case(case)
        squares = smoothing_matrix(case.cost, case.eps_s).square().sum(dim=1)
        torch.testing.assert_close(allocation.effective_neighbors, 1 / squares)

    @given(
        st.integers(2, 6), numbers(0.1, 10), numbers(0.01, 0.99), numbers(0.1, 5), numbers(0.1, 5)
    )
    @settings(max_examples=60)
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
