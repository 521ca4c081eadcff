"""The sensitivity w_SC is the gradient of the prospective risk in the increments."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from allocation.statements import ROUNDING, allocate_case, assume_decided, value_of_increments
from strategies import Scored, increments, scored


class TestSensitivity:
    @given(scored())
    @settings(max_examples=60)
    def test_is_the_gradient_of_the_value_in_the_increments(self, case: Scored) -> None:
        allocation = allocate_case(case)
        assume_decided(allocation, case.increments)
        delta = case.increments.clone().requires_grad_()
        value = value_of_increments(delta, case)
        (gradient,) = torch.autograd.grad(value, delta)
        assert allocation.value == pytest.approx(value.item(), abs=ROUNDING)
        torch.testing.assert_close(allocation.sensitivity, gradient, rtol=0, atol=ROUNDING)

    @given(st.data(), scored())
    @settings(max_examples=60)
    def test_is_a_subgradient_even_where_a_consensus_is_zero(
        self, data: st.DataObject, case: Scored
    ) -> None:
        other = data.draw(increments(len(case.increments), -1, 1))
        allocation = allocate_case(case)
        change = value_of_increments(other, case).item() - allocation.value
        linear = float(allocation.sensitivity @ (other - case.increments))
        assert change >= linear - ROUNDING

    @given(scored())
    @settings(max_examples=60)
    def test_is_not_negative_and_sums_to_the_supported_target_mass(self, case: Scored) -> None:
        allocation = allocate_case(case)
        supported = float(allocation.target[allocation.consensus > 0].sum())
        assert bool((allocation.sensitivity >= 0).all())
        assert float(allocation.sensitivity.sum()) == pytest.approx(supported, abs=ROUNDING)
        assert supported <= 1 + ROUNDING

    @given(scored())
    @settings(max_examples=60)
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
