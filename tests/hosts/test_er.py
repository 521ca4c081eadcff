"""Experience replay, step by step against gradients written out by hand."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from hosts.workbench import (
    BATCH,
    bits,
    generator,
    listening,
    observe_and_check,
    parts,
    same_bits,
    stream_batch,
    stream_gradients_at_scorings,
    weights,
)
from sphere_replay.hosts import Batch, ExperienceReplay, NoReplay
from sphere_replay.replay import Draw, Economy

View = Callable[[Tensor], Tensor]


@pytest.mark.parametrize("select", ["uniform", "loss", "mir", "sphere"])
@pytest.mark.parametrize("strength", [1.0, 0.3])
def test_a_step_is_the_sum_of_the_stream_loss_and_the_scaled_replay_loss(
    select: str, strength: float
) -> None:
    host = ExperienceReplay(parts(select, options={"strength": strength}))
    draws = listening(host).draws

    def losses(network: nn.Module, view: View, batch: Batch, *drawn: Draw) -> list[Tensor]:
        stream = F.cross_entropy(network(view(batch.images)), batch.labels)
        replayed = [
            strength * draw.scale * F.cross_entropy(network(view(draw["x"])), draw["y"])
            for draw in drawn
        ]
        return [stream, *replayed]

    for seed in range(5):
        observe_and_check(host, stream_batch(seed), losses)
        assert len(draws) == seed  # none in the first step, one in each other
    if select == "sphere":
        assert any(draw.scale < 1 for draw in draws)


def test_the_joint_form_is_the_mean_over_both_batches() -> None:
    host = ExperienceReplay(parts(options={"joint_batch": 1}))
    draws = listening(host).draws

    def losses(network: nn.Module, view: View, batch: Batch, *drawn: Draw) -> list[Tensor]:
        pairs = [(batch.images, batch.labels), *((draw["x"], draw["y"]) for draw in drawn)]
        each = [
            F.cross_entropy(network(view(images)), labels, reduction="none")
            for images, labels in pairs
        ]
        return [torch.cat(each).mean()]

    for seed in range(4):
        observe_and_check(host, stream_batch(seed), losses)
    assert len(draws) == 3


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_the_joint_form_scores_along_the_whole_stream_gradient(strength: float) -> None:
    options = {"joint_batch": True, "strength": strength}
    host = ExperienceReplay(parts("sphere", options=options))
    draws, scales = listening(host).draws, []

    def losses(network: nn.Module, view: View, batch: Batch, *drawn: Draw) -> list[Tensor]:
        stream = F.cross_entropy(network(view(batch.images)), batch.labels, reduction="sum")
        if not drawn:
            return [stream / BATCH]
        (draw,) = drawn
        scales.append(draw.scale)
        replayed = F.cross_entropy(network(view(draw["x"])), draw["y"], reduction="sum")
        return [stream / (BATCH + 6), strength * draw.scale * replayed / (BATCH + 6)]

    for seed in range(4):
        observe_and_check(host, stream_batch(seed), losses)
    assert len(draws) == 3
    assert min(scales) < 1
    plain = ExperienceReplay(parts("sphere"))
    batches = [stream_batch(seed) for seed in range(2)]
    for each in (host := ExperienceReplay(parts("sphere", options=options)), plain):
        for batch in batches:
            each.observe(batch)
    # The first scoring of both comes before any difference between them.
    first, second = (listening(each).gradients[0] for each in (host, plain))
    torch.testing.assert_close(first, second)


def test_economy_changes_scoring_and_not_what_a_step_is() -> None:
    host = ExperienceReplay(parts("sphere", economy=Economy(landmarks=4, longest=1, steady=0)))

    def losses(network: nn.Module, view: View, batch: Batch, *drawn: Draw) -> list[Tensor]:
        stream = F.cross_entropy(network(view(batch.images)), batch.labels)
        replayed = [
            draw.scale * F.cross_entropy(network(view(draw["x"])), draw["y"]) for draw in drawn
        ]
        return [stream, *replayed]

    for seed in range(4):
        observe_and_check(host, stream_batch(seed), losses)
    # After 8, 16 and 24 memories (the capacity): all once, landmarks again.
    assert host.costs.scored == (8 + 4) + (16 + 4) + (24 + 4)


def test_memories_are_the_images_as_they_came() -> None:
    host = ExperienceReplay(parts())
    batch = stream_batch(0)
    step = host.observe(batch)
    assert torch.equal(host.memory["x"], batch.images)
    assert torch.equal(host.memory["y"], batch.labels)
    assert torch.equal(host.memory["true"], batch.true_labels)
    assert (step.replay_loss, step.mass, step.drawn, step.drawn_mislabelled) == (None, None, 0, 0)


def test_the_batch_enters_the_memory_only_after_the_draw() -> None:
    host = ExperienceReplay(parts(capacity=100))
    draws = listening(host).draws
    for seed in range(6):
        host.observe(stream_batch(seed))
        assert all(int(draw.indices.max()) < BATCH * seed for draw in draws[-1:])
    assert len(host.memory) == 6 * BATCH


def test_a_step_reports_what_it_did() -> None:
    host = ExperienceReplay(parts("sphere"))
    draws = listening(host).draws
    host.observe(stream_batch(0))
    step = host.observe(stream_batch(1))
    (draw,) = draws
    assert step.drawn == len(draw) == 6
    assert step.mass == draw.scale
    wrong = [y != true for y, true in zip(draw["y"].tolist(), draw["true"].tolist(), strict=True)]
    assert step.drawn_mislabelled == sum(wrong) > 0
    assert step.replay_loss is not None


def test_without_strength_scoring_and_drawing_leave_the_weights_as_without_replay() -> None:
    replaying = ExperienceReplay(parts("sphere", options={"strength": 0.0}, shaken=0.0))
    alone = NoReplay(parts(shaken=0.0))
    for seed in range(6):
        replaying.observe(stream_batch(seed))
        alone.observe(stream_batch(seed))
    assert len(replaying.memory) == 24
    assert same_bits(weights(replaying.network), weights(alone.network))


@pytest.mark.parametrize("every", [1, 2, 3])
def test_scores_follow_the_gradient_of_the_stream_loss(every: int) -> None:
    host = ExperienceReplay(parts("sphere", every=every))
    batches = [stream_batch(seed) for seed in range(6)]
    found, expected = stream_gradients_at_scorings(host, batches, F.cross_entropy)
    assert len(found) == len(range(0, 5, every))
    torch.testing.assert_close(found, expected)


def test_costs_count_every_example_that_passes() -> None:
    host = ExperienceReplay(parts("sphere", every=2))
    for seed in range(4):
        host.observe(stream_batch(seed))
    # Stream 4 * 8; replay 3 * 6; scored at the first and third draw: 8 and 24 memories, twice.
    assert host.costs.scored == 2 * (8 + 24)
    assert host.costs.forward == 32 + 18 + 64
    assert host.costs.backward == 32 + 18


def test_prediction_uses_running_statistics_and_leaves_them_alone() -> None:
    host = ExperienceReplay(parts())
    host.observe(stream_batch(0))
    images = stream_batch(9).images
    before = bits(host.network)
    logits = host.predict(images)
    assert same_bits(before, bits(host.network))
    assert host.network.training
    alone = torch.cat([host.predict(images[row : row + 1]) for row in range(len(images))])
    torch.testing.assert_close(logits, alone)
    assert torch.equal(host.parts.augmentation.get_state(), _after_views([images]))


def _after_views(batches: list[Tensor]) -> Tensor:
    """State of the augmentation generator after training views of these batches."""
    source = generator(3)
    for images in batches:
        torch.randn(images.shape, generator=source)
    return source.get_state()
