"""The constraints of X-DER by hand."""

import math

import pytest
import torch

from sphere_replay.hosts.parts.extended_dark import (
    future_constraint,
    mean_violation,
    past_constraint,
)


def test_future_heads_against_the_own_head() -> None:
    """Three heads of two; task 1 is current, so columns 4 and 5 are the future."""
    logits = torch.tensor(
        [
            [0.0, 0.0, 1.0, 2.0, 1.9, 0.0],  # own head 1: 1.9 + 0.3 - 2.0 = 0.2
            [3.0, 0.0, 9.0, 9.0, 2.0, 2.5],  # own head 0: 2.5 + 0.3 - 3.0 < 0
            [1.0, 0.0, 9.0, 9.0, 0.0, 1.5],  # own head 0: 1.5 + 0.3 - 1.0 = 0.8
        ],
        requires_grad=True,
    )
    loss = future_constraint(logits, torch.tensor([1, 0, 0]), 1, 2, 0.3)
    assert loss.item() == pytest.approx((0.2 + 0.8) / 2)
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = torch.zeros(3, 6)
    expected[0, 4], expected[0, 3] = 0.5, -0.5
    expected[2, 5], expected[2, 0] = 0.5, -0.5
    torch.testing.assert_close(gradient, expected)


def test_past_classes_against_present_ones() -> None:
    logits = torch.tensor([[1.0, 0.0, 2.0, 0.5], [3.0, 0.0, 1.0, 0.0]], requires_grad=True)
    excess = []
    for row in logits.tolist():
        total = sum(map(math.exp, row))
        odds = [math.exp(value) / total for value in row]
        excess.append(max(odds[:2]) + 0.3 - max(odds[2:]))
    assert excess[0] < 0 < excess[1]
    loss = past_constraint(logits, 2, 0.3)
    assert loss.item() == pytest.approx(excess[1])
    (gradient,) = torch.autograd.grad(loss, logits)
    # Past probabilities are constants: the gradient is that of minus the present one alone.
    shares = logits[1].detach().softmax(0)
    expected = -shares[2] * ((torch.arange(4) == 2).float() - shares)
    torch.testing.assert_close(gradient[1], expected)
    assert (gradient[0] == 0).all()


def test_the_mean_is_over_violators_only() -> None:
    assert mean_violation(torch.tensor([-1.0, 2.0, 4.0, 0.0])) == 3
    assert mean_violation(torch.tensor([-1.0, -2.0])) == 0
