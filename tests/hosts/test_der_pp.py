"""DER++: its three losses, what it stores, and how it draws."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from hosts.workbench import (
    BATCH,
    CLASSES,
    generator,
    listening,
    observe_and_check,
    parts,
    same_bits,
    stream_batch,
    stream_gradients_at_scorings,
    weights,
)
from sphere_replay.hosts import Batch, DarkExperienceReplay, NoReplay
from sphere_replay.replay import Draw

View = Callable[[Tensor], Tensor]


@pytest.mark.parametrize("select", ["uniform", "sphere"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.3, 1.0), (0.0, 0.7), (2.0, 0.0)])
def test_a_step_by_hand(select: str, alpha: float, beta: float) -> None:
    """The MSE is over batch and classes; the mass of a selection does not enter."""
    host = DarkExperienceReplay(parts(select, options={"alpha": alpha, "beta": beta}))

    def losses(network: nn.Module, view: View, batch: Batch, *drawn: Draw) -> list[Tensor]:
        stream = F.cross_entropy(network(view(batch.images)), batch.labels)
        if not drawn:
            return [stream]
        dark, labelled = drawn
        squares = (network(view(dark["x"])) - dark["logits"]).square()
        replayed = F.cross_entropy(network(view(labelled["x"])), labelled["y"])
        return [stream, alpha * squares.sum() / (6 * CLASSES), beta * replayed]

    for seed in range(4):
        observe_and_check(host, stream_batch(seed), losses)
    assert [len(draw) for draw in listening(host).draws] == [6] * 6


def test_coefficients_are_a_half_each_unless_given() -> None:
    host = DarkExperienceReplay(parts())
    assert (host.options.alpha, host.options.beta) == (0.5, 0.5)


def test_without_its_coefficients_it_is_plain_sgd_on_the_stream() -> None:
    dark = DarkExperienceReplay(parts(options={"alpha": 0.0, "beta": 0.0}, shaken=0.0))
    alone = NoReplay(parts(shaken=0.0))
    for seed in range(6):
        dark.observe(stream_batch(seed))
        alone.observe(stream_batch(seed))
    assert len(dark.memory) == 24
    assert same_bits(weights(dark.network), weights(alone.network))


def test_stored_logits_are_of_the_augmented_view_before_the_update() -> None:
    host = DarkExperienceReplay(parts(capacity=100))
    for seed in range(3):
        before = copy.deepcopy(host.network)
        source = generator().set_state(host.parts.augmentation.get_state())
        batch = stream_batch(seed)
        host.observe(batch)
        rows = slice(BATCH * seed, BATCH * (seed + 1))
        with torch.no_grad():
            expected = before(host.parts.views.augment(batch.images, source))
            plain = before(host.parts.views.prepare(batch.images))
        assert torch.equal(host.memory["logits"][rows], expected)
        assert not torch.allclose(expected, plain)
        assert torch.equal(host.memory["x"][rows], batch.images)
        assert not host.memory["logits"].requires_grad


def test_stored_logits_are_never_refreshed() -> None:
    host = DarkExperienceReplay(parts(capacity=100))
    host.observe(stream_batch(0))
    first = host.memory["logits"].clone()
    for seed in range(1, 5):
        host.observe(stream_batch(seed))
    assert torch.equal(host.memory["logits"][:BATCH], first)


@pytest.mark.parametrize("select", ["uniform", "sphere"])
def test_the_two_draws_are_independent(select: str) -> None:
    """Two independent choices of 6 out of 24 share 1.5 memories on average (hypergeometric)."""
    host = DarkExperienceReplay(parts(select, lr=1e-6, every=1000))
    for seed in range(3):
        host.observe(stream_batch(seed))
    draws = listening(host).draws
    draws.clear()
    for seed in range(3, 203):
        host.observe(stream_batch(seed))
    shared = [
        len(set(dark.indices.tolist()) & set(labelled.indices.tolist()))
        for dark, labelled in zip(draws[::2], draws[1::2], strict=True)
    ]
    assert len(shared) == 200
    # The standard deviation of the mean is 0.07; unequal weights only add overlap.
    assert 1.25 < sum(shared) / len(shared) < (1.75 if select == "uniform" else 3.0)
    assert len(set(shared)) > 2


def test_a_step_reports_both_draws() -> None:
    host = DarkExperienceReplay(parts())
    first = host.observe(stream_batch(0))
    assert (first.drawn, first.mass) == (0, None)
    step = host.observe(stream_batch(1))
    wrong = sum(int((draw["y"] != draw["true"]).sum()) for draw in listening(host).draws)
    assert (step.drawn, step.drawn_mislabelled, step.mass) == (12, wrong, 1.0)
    assert wrong > 0
    assert (host.costs.forward, host.costs.backward) == (2 * BATCH + 12, 2 * BATCH + 12)


@pytest.mark.parametrize("every", [1, 2, 3, 4])
def test_scores_follow_the_gradient_of_the_stream_loss_alone(every: int) -> None:
    """And a step scores once, however many draws it makes."""
    host = DarkExperienceReplay(parts("sphere", every=every))
    batches = [stream_batch(seed) for seed in range(6)]
    found, expected = stream_gradients_at_scorings(host, batches, F.cross_entropy)
    assert found
    torch.testing.assert_close(found, expected)
