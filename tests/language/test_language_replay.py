"""Replay of rows: scored as two forwards by hand say, with the exact gradient, resumable."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from language import tiny
from sphere_replay.allocation import Sphere
from sphere_replay.language import (
    LanguageReplay,
    Ranks,
    Row,
    features_and_losses,
    pad_rows,
)
from sphere_replay.randomness import generator_for
from sphere_replay.replay import UNLABELLED, Engine, selection_named
from sphere_replay.scoring import Scores

BOTH = pytest.mark.parametrize("both", [True, False], ids=["t5", "qwen2"])


def model_with_gradient(both: bool, dropout: float = 0.0) -> Any:
    """A model with LoRA, so that most parameters are frozen, after backward() of a stream batch."""
    base: Any = tiny.t5(dropout=dropout) if both else tiny.qwen2(dropout=dropout)
    model = tiny.with_lora(base)
    batch = pad_rows(tiny.rows(4, encoder_decoder=both, seed=9), tiny.PAD)
    torch.autograd.backward(features_and_losses(model, batch)[1].mean())
    return model


def filled(both: bool, count: int = 20, **options: Any) -> LanguageReplay:
    replay = tiny.language_replay(encoder_decoder=both, **options)
    replay.keep_rows(tiny.rows(count, encoder_decoder=both), [i % 3 for i in range(count)])
    replay.admit()
    return replay


def scores_by_hand(model: Any, replay: LanguageReplay, slots: Tensor, lr: float) -> Scores:
    """One row at a time, the step written out."""

    def losses() -> tuple[Tensor, Tensor]:
        parts = [
            features_and_losses(model, pad_rows([row], tiny.PAD))
            for row in replay.memory.rows(slots)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    model.eval()
    with torch.no_grad():
        features, before = losses()
        moved = [(p, p.clone()) for p in model.parameters() if p.requires_grad]
        for parameter, _ in moved:
            parameter -= lr * parameter.grad
        _, after = losses()
        for parameter, old in moved:
            parameter.copy_(old)
    return Scores(after - before, before, features)


@BOTH
@pytest.mark.parametrize("budget", [40, 4096])
def test_scores_are_those_of_two_forwards_along_the_stream_gradient(
    both: bool, budget: int
) -> None:
    model, replay = model_with_gradient(both), filled(both, token_budget=budget, virtual_lr=0.5)
    seen: list[Scores] = []
    weigh = replay.engine.selection.weigh

    class Listening:
        needs_scores = needs_features = needs_increments = True
        every = 2

        def weigh(self, scores: Scores, *rest: Any) -> Any:
            seen.append(scores)
            return weigh(scores, *rest)

    replay.engine.weigher.selection = Listening()
    replay.draw(model, 4)
    slots = replay.engine.schedule.state_dict()["slots"]
    assert len(slots) == 16
    expected = scores_by_hand(model, replay, slots, 0.5)
    torch.testing.assert_close(seen[0].losses, expected.losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(seen[0].features, expected.features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen[0].increments, expected.increments, rtol=1e-2, atol=3e-6)
    assert expected.increments.abs().max() > 1e-4


@BOTH
def test_scoring_leaves_no_trace(both: bool) -> None:
    model, replay = model_with_gradient(both, dropout=0.1), filled(both)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = {name: p.grad for name, p in model.named_parameters()}
    copies = {name: g.clone() for name, g in gradients.items() if g is not None}
    random = torch.get_rng_state()
    replay.draw(model, 4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is gradients[name] for name, p in model.named_parameters())
    assert all(torch.equal(g, copies[n]) for n, g in gradients.items() if g is not None)
    assert 0 < len(copies) < len(gradients)  # frozen ones have none
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training


@BOTH
@pytest.mark.parametrize("strength", [1.0, 0.25])
def test_the_added_gradient_is_that_of_the_mean_loss(both: bool, strength: float) -> None:
    model, replay = model_with_gradient(both).double(), filled(both)
    parameters = [p for p in model.parameters() if p.requires_grad]
    stream_gradient = [p.grad.clone() for p in parameters]
    draw = replay.draw(model, 4)
    rows = [pad_rows([row], tiny.PAD) for row in replay.memory.rows(draw.indices)]
    mean = torch.stack([model(**row).loss for row in rows]).mean()
    wanted = torch.autograd.grad(mean, parameters)
    value = replay.add_gradient(model, draw, strength=strength)
    assert draw.scale == 1.0
    # The model works in double precision, but its own loss in single.
    assert value == pytest.approx(mean.item(), rel=1e-6)
    for parameter, old, new in zip(parameters, stream_gradient, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, old + strength * new, rtol=1e-5, atol=1e-6)


def test_the_mass_counts_if_asked_to() -> None:
    model, replay = model_with_gradient(False), filled(False, unit_mass=False)
    draw = replay.draw(model, 4)
    assert replay.engine.weighting is not None
    assert draw.scale == replay.engine.weighting.mass
    assert 0.5 <= draw.scale < 1
    loss, whole = replay.loss(model, draw), pad_rows(replay.memory.rows(draw.indices), tiny.PAD)
    assert loss is not None
    expected = features_and_losses(model, whole)[1].mean() * draw.scale
    torch.testing.assert_close(loss, expected)


def test_a_gradient_scaler_changes_nothing() -> None:
    factor = 1024.0
    plain, scaled = model_with_gradient(False), model_with_gradient(False)
    for parameter in scaled.parameters():
        if parameter.grad is not None:
            parameter.grad *= factor
    one, other = filled(False), filled(False)
    first, second = one.draw(plain, 4), other.draw(scaled, 4, grad_scale=factor)
    assert torch.equal(first.indices, second.indices)
    assert one.add_gradient(plain, first) == other.add_gradient(scaled, second, grad_scale=factor)
    for a, b in zip(plain.parameters(), scaled.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad * factor, b.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("select", UNLABELLED)
def test_every_selection_draws_as_the_engine_does(select: str) -> None:
    model, replay = model_with_gradient(False), filled(False, select=select, pool=None, every=1)
    same = Engine(
        replay.memory.slots,
        selection_named(select, Sphere.instruct(), 16),
        generator=generator_for(0, "replay"),
        unit_mass=True,
    )
    expected = same.draw(4, partial(replay.score, model))
    drawn = replay.draw(model, 4)
    assert torch.equal(drawn.indices, expected.indices)
    assert drawn.scale == expected.scale == 1.0
    assert len(set(drawn.indices.tolist())) == 4


def test_the_largest_increments_alone_are_drawn_by_mir_top() -> None:
    model, replay = model_with_gradient(False), filled(False, select="mir-top", top=4, pool=None)
    increments = replay.score(model, torch.arange(20)).increments
    drawn = replay.draw(model, 4)
    assert set(drawn.indices.tolist()) == set(increments.topk(4).indices.tolist())


def test_candidates_are_scored_at_every_second_draw() -> None:
    model, replay = model_with_gradient(False), filled(False)
    calls = 0
    forward = model.forward

    def counted(**inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        return forward(**inputs)

    model.forward = counted
    counts = []
    for _ in range(5):
        replay.draw(model, 2)
        counts.append(calls)
    replay.start_task()
    replay.draw(model, 2)
    assert counts[0] == counts[1] > 0
    assert counts[2] == counts[3] == 2 * counts[1]
    assert counts[4] == 3 * counts[1]
    assert calls == 4 * counts[1]


@pytest.mark.parametrize("select", ["sphere", "uniform", "sphere-permuted"])
def test_a_saved_replay_continues_as_if_nothing_had_happened(select: str) -> None:
    model, replay = model_with_gradient(False), filled(False, select=select)
    for _ in range(3):
        replay.add_gradient(model, replay.draw(model, 2))
    again = tiny.language_replay(seed=77, select=select)
    again.load_state_dict(replay.state_dict())
    drawn: list[list[int]] = []
    for each in (replay, again):
        each.keep_rows(tiny.rows(30, encoder_decoder=False, seed=5))
        each.admit()
        drawn.append([i for _ in range(4) for i in each.draw(model, 3).indices.tolist()])
    assert drawn[0] == drawn[1]
    assert replay.metrics() == again.metrics()
    assert replay.task == again.task


def test_metrics_say_what_was_replayed_since_the_last_ones() -> None:
    model, replay = model_with_gradient(False), filled(False)
    draws = [replay.draw(model, 3) for _ in range(2)]
    losses = [replay.add_gradient(model, draw) for draw in draws]
    metrics = replay.metrics()
    tasks = [int(task) for draw in draws for task in draw["task"]]
    for task in range(3):
        assert metrics.get(f"share/task_{task}", 0.0) == tasks.count(task) / 6
    assert metrics["loss"] == pytest.approx(sum(losses) / 2)
    assert 0.5 <= metrics["mass"] <= 1
    assert 1 <= metrics["ess"] <= 16
    assert metrics["increment_p5"] <= metrics["increment_p50"] <= metrics["increment_p95"]
    assert metrics["memory"] == 20
    later = replay.metrics()
    assert "loss" not in later
    assert not [name for name in later if name.startswith("share")]


def test_uniform_replay_has_full_mass() -> None:
    assert "mass" not in tiny.language_replay(select="uniform").metrics()
    metrics = filled(False, select="uniform").metrics()
    assert (metrics["mass"], metrics["ess"]) == (1, 20)


class OneOfTwo(Ranks):
    """One of two processes, whose sums are left to the test."""

    def summed(self, values: Tensor) -> Tensor:
        return values

    def gathered_rows(self, rows: Sequence[Row]) -> list[Row]:
        return list(rows)


@BOTH
@pytest.mark.parametrize("count", [1, 9])
def test_two_shares_make_the_whole(both: bool, count: int) -> None:
    model, whole = model_with_gradient(both), filled(both, count, pool=None)
    shares = [filled(both, count, pool=None, ranks=OneOfTwo(rank, 2)) for rank in range(2)]
    slots = torch.arange(count)
    scores = whole.score(model, slots)
    parts = [share.score(model, slots) for share in shares]
    for name in ("increments", "losses", "features"):
        total = getattr(parts[0], name) + getattr(parts[1], name)
        torch.testing.assert_close(total, getattr(scores, name), rtol=1e-4, atol=1e-5)
    draw = whole.draw(model, 5)
    losses = [share.loss(model, draw) for share in shares]
    assert (losses[1] is None) == (count == 1)
    total = sum(loss for loss in losses if loss is not None)
    torch.testing.assert_close(total, whole.loss(model, draw))


def test_rows_without_targets_are_left_out_and_counted() -> None:
    replay = tiny.language_replay()
    rows = tiny.rows(3, encoder_decoder=False)
    rows[1]["labels"][:] = -100
    replay.start_task()
    replay.keep_rows(rows)
    replay.admit()
    assert len(replay.memory) == 2
    assert replay.memory.tasks.tolist() == [1, 1]
    assert replay.metrics()["skipped"] == 1
    with pytest.raises(ValueError, match="3 rows need one task each, got 1"):
        replay.keep_rows(rows, [0])


def test_names_and_gradients_that_are_missing_are_named() -> None:
    with pytest.raises(ValueError, match="unknown selection 'sfere': did you mean sphere"):
        tiny.language_replay(select="sfere")
    model: nn.Module = tiny.qwen2()
    with pytest.raises(RuntimeError, match=r"call loss\.backward\(\) on the stream batch first"):
        filled(False).draw(model, 2)
    empty = tiny.language_replay(capacity=16)
    with pytest.raises(ValueError, match="the memory is empty"):
        empty.draw(model, 2)


@BOTH
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_replay_passed_is_not_passed_again_unless_dropout_drew(
    both: bool, dropout: float
) -> None:
    replay = filled(both, schedule="economical", landmarks=4, every=1, longest=1)
    model = model_with_gradient(both, dropout)
    model.train()
    draws = []
    for _ in range(2):
        draws.append(replay.draw(model, 6))
        replay.add_gradient(model, draws[-1])
    first, second = (draw.cost for draw in draws)
    size = len(replay.engine.schedule.slots)
    assert first == size + 4
    if dropout:
        assert second == size + 4
    else:
        assert size + 4 - 6 <= second < size + 4  # some that were replayed may be landmarks


@BOTH
def test_another_training_may_be_of_another_model(both: bool) -> None:
    replay = filled(both, schedule="economical", landmarks=4, every=1, longest=1)
    model = model_with_gradient(both, dropout=0.0)
    replay.add_gradient(model, replay.draw(model, 6))
    assert len(replay.engine.state_dict()["passing"]["known"]["slots"]) == 6
    replay.begin()
    assert replay.engine.state_dict()["passing"]["known"] is None
