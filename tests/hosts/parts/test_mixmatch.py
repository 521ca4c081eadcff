"""MixUp and MixMatch: targets are probabilities, and each belongs to its own image."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from hosts.workbench import generator
from sphere_replay.hosts.parts.mixmatch import guess_targets, mixmatch_loss, mixup, sharpen

CLASSES = 4


def probabilities(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, CLASSES, generator=generator(seed)).softmax(dim=1)


def test_mixup_keeps_inputs_and_targets_together() -> None:
    """Inputs that are their targets must come out as their targets."""
    targets = probabilities(50)
    inputs = targets[:, :, None, None].expand(-1, -1, 2, 3)
    mixed = mixup(inputs, targets, generator(3))
    torch.testing.assert_close(mixed.inputs, mixed.targets[:, :, None, None].expand_as(inputs))
    torch.testing.assert_close(mixed.targets.sum(dim=1), torch.ones(50))
    assert (mixed.targets >= 0).all()
    assert (mixed.shares >= 0.5).all()
    assert (mixed.shares <= 1).all()


def test_every_row_is_the_larger_part_of_itself() -> None:
    mixed = mixup(torch.eye(40), torch.eye(40), generator(4))
    own = mixed.inputs.diagonal()
    partnered = own < 1
    assert torch.allclose(own[partnered], mixed.shares[partnered])
    assert ((mixed.inputs > 0).sum(dim=1) <= 2).all()
    assert (mixed.inputs.sum(dim=0) > 0).all()


def test_shares_follow_the_folded_arcsine_law() -> None:
    shares = mixup(torch.zeros(20000, 1), torch.zeros(20000, 1), generator(5)).shares
    # E max(λ, 1-λ) = 1/2 + 1/π for λ ~ Beta(1/2, 1/2).
    assert float(shares.mean()) == pytest.approx(0.5 + 1 / torch.pi, abs=0.005)


def test_sharpening_by_hand() -> None:
    values = torch.tensor([[0.5, 0.3, 0.2, 0.0]])
    squares = values.square()
    torch.testing.assert_close(sharpen(values, 0.5), squares / squares.sum())
    torch.testing.assert_close(sharpen(values, 1.0), values)
    tiny = torch.tensor([[1e-25, 1e-26, 0.0, 0.0]])
    assert sharpen(tiny, 0.25).isfinite().all()
    assert float(sharpen(tiny, 0.25).sum()) == pytest.approx(1)


def test_guesses_belong_to_their_own_image() -> None:
    """Three views of five images, whose logits say which image they are of."""
    base = torch.randn(5, CLASSES, generator=generator(6))
    noise = 0.1 * torch.randn(3, 5, CLASSES, generator=generator(7))
    labels = torch.tensor([0, 1, 2, 3, 0])
    trust = torch.tensor([0.0, 0.2, 1.0, 0.5, 0.9])
    found = guess_targets(base + noise, labels, trust, 0.5)
    for image in range(5):
        mean = sum((base[image] + noise[view, image]).softmax(0) for view in range(3)) / 3
        guess = torch.as_tensor(mean).square()
        onehot = F.one_hot(labels[image], CLASSES).float()
        expected = trust[image] * onehot + (1 - trust[image]) * guess / guess.sum()
        torch.testing.assert_close(found[image], expected)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(5))
    assert (found >= 0).all()


@pytest.mark.parametrize("doubtful", [0, 6])
def test_the_loss_by_hand(doubtful: int) -> None:
    weight = torch.randn(CLASSES, 5, generator=generator(8))
    images = torch.randn(4 + doubtful, 5, generator=generator(9))
    targets = probabilities(4 + doubtful, 10)
    loss = mixmatch_loss(
        lambda inputs: inputs @ weight.T,
        (images[:4], targets[:4]),
        (images[4:], targets[4:]),
        generator(11),
        weight=0.7,
    )
    mixed = mixup(images, targets, generator(11))
    logits = mixed.inputs @ weight.T
    expected = -(mixed.targets * logits.log_softmax(dim=1))[:4].sum() / 4
    if doubtful:
        error = (logits.softmax(dim=1) - mixed.targets)[4:].square()
        expected = expected + 0.7 * error.sum() / (doubtful * CLASSES)
    torch.testing.assert_close(loss, expected)
