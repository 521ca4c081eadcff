"""The supervised contrastive loss against its formula in loops."""

import math

import pytest
import torch

from hosts.workbench import generator
from sphere_replay.hosts.parts.extended_dark import supervised_contrastive

LABELS = torch.tensor([0, 1, 0, 2, 1])


def by_hand(
    features: list[list[list[float]]], labels: list[int], temperature: float
) -> list[float]:
    """Views of examples of numbers to one loss per example."""
    flat = [(row, labels[i]) for view in features for i, row in enumerate(view)]
    units = []
    for row, label in flat:
        norm = math.sqrt(sum(value * value for value in row))
        units.append(([value / norm for value in row], label))
    losses = []
    for a, (anchor, label) in enumerate(units):
        scores = [sum(x * y for x, y in zip(anchor, other, strict=True)) for other, _ in units]
        total = sum(math.exp(s / temperature) for b, s in enumerate(scores) if b != a)
        positives = [b for b, (_, other) in enumerate(units) if b != a and other == label]
        terms = [-math.log(math.exp(scores[b] / temperature) / total) for b in positives]
        losses.append(sum(terms) / len(terms) if terms else 0.0)
    count = len(labels)
    views = len(features)
    return [sum(losses[v * count + i] for v in range(views)) / views for i in range(count)]


@pytest.mark.parametrize("views", [1, 2, 4])
@pytest.mark.parametrize("temperature", [5.0, 0.3])
def test_the_formula(views: int, temperature: float) -> None:
    features = torch.randn(views, 5, 3, generator=generator(), dtype=torch.float64)
    found = supervised_contrastive(features, LABELS, temperature)
    expected = by_hand(features.tolist(), LABELS.tolist(), temperature)
    assert found.tolist() == pytest.approx(expected)
    if views == 1:
        assert found[3] == 0  # the only one of its class


def test_leading_dimensions_are_problems_of_their_own() -> None:
    features = torch.randn(3, 2, 5, 4, generator=generator(), dtype=torch.float64)
    together = supervised_contrastive(features, LABELS, 5.0)
    alone = torch.stack([supervised_contrastive(part, LABELS, 5.0) for part in features])
    torch.testing.assert_close(together, alone)


def test_only_directions_matter_and_agreement_pays() -> None:
    features = torch.randn(2, 5, 3, generator=generator())
    scaled = features * torch.rand(2, 5, 1, generator=generator(1)) * 9 + features
    torch.testing.assert_close(
        supervised_contrastive(features, LABELS, 1.0), supervised_contrastive(scaled, LABELS, 1.0)
    )
    ideal = torch.nn.functional.one_hot(LABELS).float().expand(2, -1, -1)
    # Three positives that share all there is: log 3 is the least; the lonely one has but one.
    found = supervised_contrastive(ideal, LABELS, 0.05)
    assert found.tolist() == pytest.approx([math.log(count) for count in (3, 3, 3, 1, 3)], abs=1e-4)
    assert supervised_contrastive(ideal, torch.tensor([0, 0, 1, 1, 2]), 0.05).mean() > 5


def test_a_feature_of_zeros_has_a_finite_gradient() -> None:
    features = torch.zeros(2, 5, 3, requires_grad=True)
    loss = supervised_contrastive(features, LABELS, 5.0).sum()
    (gradient,) = torch.autograd.grad(loss, features)
    assert gradient.isfinite().all()


def test_a_view_that_is_alone_costs_nothing() -> None:
    features = torch.randn(1, 1, 3, requires_grad=True, generator=generator())
    loss = supervised_contrastive(features, torch.tensor([2]), 5.0)
    assert loss.tolist() == [0.0]
    (gradient,) = torch.autograd.grad(loss.sum(), features)
    assert gradient.abs().max() == 0
