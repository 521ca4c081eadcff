"""Losses for labels that are trusted by degrees."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from hypothesis import given
from hypothesis import strategies as st

from hosts.workbench import generator
from sphere_replay.hosts.parts.cutmix import Mixed, mixed_cross_entropy
from sphere_replay.hosts.parts.parted_fit import consistency, relabel


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(2, 5))
def test_new_labels_are_probabilities_between_the_given_and_the_predicted(
    seed: int, count: int, classes: int
) -> None:
    source = generator(seed)
    labels = torch.randint(classes, (count,), generator=source)
    predicted = torch.randn(count, classes, generator=source).softmax(1)
    trust = torch.rand(count, generator=source)
    targets = relabel(labels, trust, predicted)
    torch.testing.assert_close(targets.sum(1), torch.ones(count))
    for row in range(count):
        for c in range(classes):
            given_share = float(trust[row]) * float(labels[row] == c)
            expected = given_share + (1 - float(trust[row])) * float(predicted[row, c])
            assert float(targets[row, c]) == pytest.approx(expected, abs=1e-6)


def test_full_trust_keeps_the_label_and_none_takes_the_prediction() -> None:
    predicted = torch.tensor([[0.2, 0.8], [0.6, 0.4]])
    targets = relabel(torch.tensor([0, 1]), torch.tensor([1.0, 0.0]), predicted)
    torch.testing.assert_close(targets, torch.tensor([[1.0, 0.0], [0.6, 0.4]]))


def test_consistency_is_between_probabilities_unless_asked_otherwise() -> None:
    weak, strong = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3.0), 0.0]])
    assert float(consistency(weak, strong)) == pytest.approx(0.25**2)
    expected = math.log(3.0) ** 2 / 2
    assert float(consistency(weak, strong, on_logits=True)) == pytest.approx(expected)
    shifted = consistency(weak + 7, strong - 3)  # the same probabilities
    assert float(shifted) == pytest.approx(0.25**2, rel=1e-5)


def test_mixed_labels_count_by_their_area() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    mixed = Mixed(torch.empty(0), torch.tensor([0, 1]), torch.tensor([1, 0]), 0.7)
    own = F.cross_entropy(logits, torch.tensor([0, 1]))
    other = F.cross_entropy(logits, torch.tensor([1, 0]))
    torch.testing.assert_close(mixed_cross_entropy(logits, mixed), 0.7 * own + 0.3 * other)
