"""ER-ACE: which columns the stream may push, and that replay sees all of them."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from hosts.workbench import (
    CLASSES,
    generator,
    listening,
    observe_and_check,
    parts,
    stream_batch,
    stream_gradients_at_scorings,
)
from sphere_replay.hosts import AsymmetricReplay, Batch
from sphere_replay.hosts.er_ace import AsymmetricOptions, MaskRule
from sphere_replay.replay import Draw

View = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(
    ("rule", "labels", "newest", "kept"),
    [
        (MaskRule.PRESENT_AND_NEWEST, {2, 3}, 3, {2, 3, 4, 5, 6, 7, 8, 9}),
        (MaskRule.PRESENT_AND_NEWEST, {0, 3}, 3, {0, 3, 4, 5, 6, 7, 8, 9}),
        (MaskRule.PRESENT_AND_NEWEST, {0, 1}, 3, {0, 1, 3, 4, 5, 6, 7, 8, 9}),
        (MaskRule.PRESENT_AND_NEWEST, {0, 1}, 9, {0, 1, 9}),
        (MaskRule.PRESENT_ONLY, {2, 3}, 3, {2, 3}),
        (MaskRule.PRESENT_ONLY, {0}, 3, {0}),
        (MaskRule.PRESENT_ONLY, {0, 9}, 9, {0, 9}),
        (MaskRule.PRESENT_AND_UNSEEN, {2, 3}, 3, {2, 3, 4, 5, 6, 7, 8, 9}),
        (MaskRule.PRESENT_AND_UNSEEN, {0, 1}, 3, {0, 1, 4, 5, 6, 7, 8, 9}),
        (MaskRule.PRESENT_AND_UNSEEN, {0, 1}, 9, {0, 1}),
    ],
)
def test_columns_that_the_stream_loss_keeps(
    rule: MaskRule, labels: set[int], newest: int, kept: set[int]
) -> None:
    repeated = torch.tensor(sorted(labels) * 3)
    columns = rule.columns(repeated, newest, 10)
    assert columns.dtype == torch.bool
    assert set(columns.nonzero().flatten().tolist()) == kept


def test_the_rules_are_numbered_from_the_authors_own() -> None:
    names = ("present_and_newest", "present_only", "present_and_unseen")
    for number, (rule, name) in enumerate(zip(MaskRule, names, strict=True)):
        for spelling in (number, float(number), name):
            assert AsymmetricOptions.of({"mask_rule": spelling}).mask_rule is rule


RULE_CASES = [
    (0, {0, 1, 3, 4, 5}),
    (1, {0, 1}),
    (2, {0, 1, 4, 5}),
]
"""Columns kept by each rule after class 3 was seen, for a batch of the classes 0 and 1."""


def after_class_3(rule: int) -> AsymmetricReplay:
    host = AsymmetricReplay(parts(options={"mask_rule": rule}))
    host.observe(stream_batch(0, classes=(2, 3)))
    return host


@pytest.mark.parametrize(("rule", "kept"), RULE_CASES)
def test_the_stream_loss_is_cross_entropy_among_the_kept_columns(rule: int, kept: set[int]) -> None:
    host = after_class_3(rule)
    logits = torch.randn(8, CLASSES, generator=generator(), requires_grad=True)
    labels = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1])
    loss = host.stream_loss(logits, labels)
    columns = sorted(kept)
    expected = F.cross_entropy(logits[:, columns], torch.tensor([columns.index(y) for y in labels]))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits)
    for column in range(CLASSES):
        assert bool((gradient[:, column] != 0).all()) == (column in kept)
        assert bool((gradient[:, column] == 0).all()) == (column not in kept)


@pytest.mark.parametrize("size", [1e4, 1e8])
def test_masked_columns_stay_out_however_large_their_logits(size: float) -> None:
    host = after_class_3(0)
    logits = torch.zeros(2, CLASSES)
    logits[:, 2] = size
    assert host.stream_loss(logits, torch.tensor([0, 1])).item() == pytest.approx(
        torch.tensor(5.0).log().item()
    )


def test_the_replay_loss_sees_every_column() -> None:
    host = after_class_3(0)
    logits = torch.randn(4, CLASSES, generator=generator(), requires_grad=True)
    labels = torch.tensor([0, 1, 0, 1])
    loss = host.replay_loss(logits, labels)
    assert loss.item() == pytest.approx(F.cross_entropy(logits, labels).item())
    (gradient,) = torch.autograd.grad(loss, logits)
    assert bool((gradient != 0).all())


@pytest.mark.parametrize("select", ["uniform", "mir", "sphere"])
@pytest.mark.parametrize("rule", [0, 1, 2])
def test_a_step_by_hand(select: str, rule: int) -> None:
    host = AsymmetricReplay(parts(select, options={"mask_rule": rule}))
    order = [(0, 1), (0,), (2, 3), (2,), (2, 3), (4, 5)]
    newest = [1, 1, 3, 3, 3, 5]

    for seed, classes in enumerate(order):
        kept = {
            0: set(classes) | set(range(newest[seed], CLASSES)),
            1: set(classes),
            2: set(classes) | set(range(newest[seed] + 1, CLASSES)),
        }[rule]
        columns = sorted(kept)

        def losses(
            network: nn.Module, view: View, batch: Batch, *drawn: Draw, columns: list[int] = columns
        ) -> list[Tensor]:
            logits = network(view(batch.images))[:, columns]
            stream = F.cross_entropy(
                logits, torch.tensor([columns.index(y) for y in batch.labels.tolist()])
            )
            replayed = [
                draw.scale * F.cross_entropy(network(view(draw["x"])), draw["y"]) for draw in drawn
            ]
            return [stream, *replayed]

        batch = stream_batch(seed, classes)
        assert set(batch.labels.tolist()) == set(classes)
        observe_and_check(host, batch, losses)
    assert len(listening(host).draws) == 5


def test_old_classes_in_replay_do_not_move_the_newest_class() -> None:
    host = AsymmetricReplay(parts())
    host.observe(stream_batch(0, classes=(4, 5)))
    host.observe(stream_batch(1, classes=(0, 1)))
    fresh = AsymmetricReplay(parts())
    fresh.observe(stream_batch(1, classes=(0, 1)))
    logits, labels = torch.randn(3, CLASSES, generator=generator()), torch.tensor([0, 1, 0])
    seen_5 = host.stream_loss(logits, labels)
    seen_1 = fresh.stream_loss(logits, labels)
    torch.testing.assert_close(
        seen_5, F.cross_entropy(logits[:, [0, 1, 5]], labels), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(seen_1, F.cross_entropy(logits, labels), rtol=1e-6, atol=0)


def test_the_newest_class_is_part_of_the_state() -> None:
    host = after_class_3(0)
    other = AsymmetricReplay(parts())
    other.load_state_dict(copy.deepcopy(host.state_dict()))
    logits, labels = torch.randn(3, CLASSES, generator=generator()), torch.tensor([0, 1, 0])
    fresh = AsymmetricReplay(parts()).stream_loss(logits, labels)
    assert other.stream_loss(logits, labels) == host.stream_loss(logits, labels) != fresh


def test_scores_follow_the_gradient_of_the_asymmetric_loss() -> None:
    host = AsymmetricReplay(parts("sphere"))
    judge = AsymmetricReplay(parts())
    batches = [stream_batch(seed, classes) for seed, classes in enumerate([(2, 3), (0,), (1,)])]
    found, expected = stream_gradients_at_scorings(host, batches, judge.stream_loss)
    assert len(found) == 2
    torch.testing.assert_close(found, expected)


def test_the_joint_form_keeps_the_mask() -> None:
    """Ordinary cross-entropy over the joint batch would be ER under the name of ER-ACE."""
    host = AsymmetricReplay(parts(options={"joint_batch": 1}))
    host.observe(stream_batch(0, classes=(2, 3)))
    asked: list[Tensor] = []
    original = host.stream_loss

    def listened(logits: Tensor, labels: Tensor) -> Tensor:
        asked.append(labels)
        return original(logits, labels)

    host.stream_loss = listened  # type: ignore[method-assign]  # the test listens in
    host.observe(stream_batch(1, classes=(0, 1)))
    assert len(asked) == 1
