"""What one update with replay is made of, against gradients and steps written out by hand."""

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from integrations.training import Gradients, history, same_weights, weights
from integrations.trl.grpo import PROGRAMS, Witness, log_probabilities, surrogate, trainer
from language import tiny
from sphere_replay.integrations.transformers.zero import whole_optimizer
from sphere_replay.replay import UNLABELLED


@pytest.mark.parametrize(("strength", "select"), [(1.0, "sphere"), (0.3, "uniform")])
def test_gradients_are_stream_plus_strength_times_mean_replay(
    strength: float, select: str, tmp_path: Path
) -> None:
    gradients = Gradients()
    training = trainer(
        tmp_path,
        replay={"strength": strength, "select": select},
        callbacks=[gradients],
        learning_rate=1e-3,
    )
    witness = Witness(training)
    training.train()
    model: Any = tiny.qwen2()
    repeated = 0
    for update, seen in enumerate(gradients.seen):
        model.load_state_dict(witness.weights[update])
        # Two micro-batches of one group's size: their mean is TRL's loss of the window.
        parts = [surrogate(model, batch) / 2 for batch in witness.stream[update]]
        replayed = witness.replayed(update)
        counts = [count for _, count in replayed]
        assert sum(counts) == (3 if update else 0)  # at first there is nothing to replay
        repeated += sum(count > 1 for count in counts)
        parts += [strength * count / 3 * surrogate(model, g.inputs) for g, count in replayed]
        model.zero_grad()
        torch.autograd.backward(torch.stack(parts).sum())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(seen[name], parameter.grad, rtol=1e-3, atol=1e-6)
    assert repeated  # some group was drawn twice
    assert any(bool(seen["lm_head.weight"].any()) for seen in gradients.seen)


def test_without_replay_it_is_the_plain_trainer(tmp_path: Path) -> None:
    # With strength 0, candidates are sampled and scored, and leave no trace but their metrics.
    kinds: list[dict[str, Any]] = [
        {"base": GRPOTrainer},
        {"replay": {"select": "none"}},
        {"replay": {"strength": 0.0}},
    ]
    runs = []
    for kind in kinds:
        # One after the other: a trainer that is made seeds what sampling draws from.
        runs.append(trainer(tmp_path, model=tiny.qwen2(dropout=0.1), **kind))
        runs[-1].train()
    plain, none, idle = runs
    assert none.replay.costs == {"programs": 0, "forwards": 0, "backwards": 0}
    assert none.replay.embeddings is None
    assert idle.replay.costs["forwards"] > 0
    for other in (none, idle):
        assert same_weights(weights(other), weights(plain))
        for one, two in zip(history(plain), history(other), strict=True):
            assert {name: one[name] for name in one if name != "step_time"}.items() <= two.items()


def test_scoring_leaves_everything_as_it_was(tmp_path: Path) -> None:
    training = trainer(tmp_path, model=tiny.qwen2(dropout=0.1), max_steps=5)
    weigh, checked = training.replay._weigh, 0

    def snapshot() -> tuple[Any, ...]:
        optimizer = whole_optimizer(training.optimizer)
        return (
            copy.deepcopy(training.model.state_dict()),
            copy.deepcopy(optimizer.state_dict()),
            [(id(p.grad), p.grad.clone()) for p in training.model.parameters()],
            [module.training for module in training.model.modules()],
            torch.get_rng_state(),
        )

    def watched(*arguments: Any) -> Any:
        nonlocal checked
        before = snapshot()
        result = weigh(*arguments)
        torch.testing.assert_close(snapshot(), before, rtol=0, atol=0)
        assert abs(result.details["increment_p95"]) > 0
        checked += 1
        return result

    training.replay._weigh = watched
    training.train()
    assert checked >= 3


def test_increments_are_those_of_the_optimizers_own_step(tmp_path: Path) -> None:
    training = trainer(tmp_path, replay={"virtual_lr": 3e-3}, weight_decay=0.1, max_steps=3)
    weigh = training.replay._weigh
    compared = 0

    def watched(candidates: Any, kept: Tensor) -> Any:
        nonlocal compared
        model: Any = tiny.qwen2()
        model.load_state_dict(training.model.state_dict())
        groups = [candidates.own[place].inputs for place in kept.tolist()]
        pinned = [_pinned(model, inputs) for inputs in groups]
        before = [surrogate(model, inputs) for inputs in groups]
        _step_by_hand(training, model, 3e-3)
        after = [surrogate(model, g, pinned=p) for g, p in zip(groups, pinned, strict=True)]
        seen: list[Tensor] = []
        weigher = training.replay.weigher
        weigher.selection, plain = _Spy(weigher.selection, seen), weigher.selection
        result = weigh(candidates, kept)
        weigher.selection = plain
        wanted = torch.stack(after) - torch.stack(before)
        torch.testing.assert_close(seen[0], wanted.detach(), rtol=2e-2, atol=2e-6)
        compared += int((wanted.abs() > 1e-4).sum())
        return result

    training.replay._weigh = watched
    training.train()
    assert compared


class _Spy:
    """A selection that tells the increments it was given."""

    needs_scores = needs_features = needs_increments = True

    def __init__(self, selection: Any, seen: list[Tensor]) -> None:
        self._selection = selection
        self._seen = seen

    def weigh(self, scores: Any, *rest: Any) -> Any:
        self._seen.append(scores.increments)
        return self._selection.weigh(scores, *rest)


def _pinned(model: Any, inputs: Any) -> Tensor:
    logs = torch.zeros(inputs["completion_ids"].shape)
    for k in range(len(logs)):
        prompt = inputs["prompt_ids"][k][inputs["prompt_mask"][k].bool()]
        length = int(inputs["completion_mask"][k].sum())
        program = inputs["completion_ids"][k, :length]
        logs[k, :length] = log_probabilities(model, prompt, program).detach()
    return logs


def _step_by_hand(training: Any, model: Any, lr: float) -> None:
    """AdamW from its formulas, with the moments the trainer's optimizer has so far."""
    optimizer = whole_optimizer(training.optimizer)
    decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    pairs = zip(training.model.parameters(), model.parameters(), strict=True)
    for own, moved in pairs:
        state = optimizer.state.get(own, {})
        step = float(state.get("step", 0)) + 1
        first = 0.9 * state.get("exp_avg", torch.zeros_like(own)) + 0.1 * own.grad
        second = 0.999 * state.get("exp_avg_sq", torch.zeros_like(own)) + 0.001 * own.grad**2
        moved.data.mul_(1 - lr * decays[id(own)])
        size = (second / (1 - 0.999**step)).sqrt() + 1e-8
        moved.data.sub_(lr * (first / (1 - 0.9**step)) / size)


def test_only_mixed_groups_are_scored_twice_each(tmp_path: Path) -> None:
    training = trainer(tmp_path, reward=_seldom)
    witness = Witness(training)
    calls = {True: 0, False: 0}
    compute = training._compute_loss

    def counted(model: Any, inputs: Any) -> Any:
        calls[bool(model.training)] += 1
        return compute(model, inputs)

    training._compute_loss = counted
    training.train()
    sampled = [each for each in witness.candidates if each is not None]
    mixed = sum(int(each.mixed.sum()) for each in sampled)
    distinct = sum(len(witness.replayed(update)) for update in range(4))
    assert 0 < mixed < sum(len(each.problems) for each in sampled)
    assert calls == {False: 2 * mixed, True: 2 * 4 + distinct}
    programs = PROGRAMS * sum(len(each.problems) for each in sampled)
    assert training.replay.costs == {
        "programs": programs,
        "forwards": 2 * mixed,
        "backwards": distinct,
    }
    assert all(training.replay.seconds[part] > 0 for part in ("generate", "score", "replay"))


def _seldom(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(sum(ids) % 5 == 0) for ids in completion_ids]


def _always(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [1.0] * len(completion_ids)


def test_equal_outcomes_fall_back_to_uniform_and_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = trainer(tmp_path, base=GRPOTrainer, reward=_always)
    training = trainer(tmp_path, reward=_always)
    with caplog.at_level(logging.WARNING, logger="sphere_replay"):
        plain.train()
        training.train()
    assert same_weights(weights(training), weights(plain))
    said = [record.getMessage() for record in caplog.records if "sphere_replay" in record.name]
    assert len(said) == 1
    assert "none of the 2 candidates has programs with different rewards" in said[0]
    log = training.state.log_history[2]
    assert (log["replay/fallback"], log["replay/mixed"], log["replay/draws"]) == (1.0, 0.0, 0.0)
    assert (log["replay/mass"], log["replay/ess"], log["replay/reward"]) == (1.0, 4.0, 1.0)
    assert training.replay.costs["forwards"] == training.replay.costs["backwards"] == 0


def test_a_group_whose_programs_are_all_masked_is_empty(tmp_path: Path) -> None:
    # No program of this model ends by itself, and truncated ones do not count.
    training = trainer(tmp_path, mask_truncated_completions=True, generation_kwargs=_NO_END)
    training.train()
    log = training.state.log_history[2]
    assert (log["replay/empty"], log["replay/mixed"], log["replay/fallback"]) == (1.0, 0.0, 1.0)


_NO_END = {"suppress_tokens": [1]}


@pytest.mark.parametrize("select", [name for name in UNLABELLED if name != "uniform"])
def test_every_selection_trains(select: str, tmp_path: Path) -> None:
    training = trainer(tmp_path, replay={"select": select}, max_steps=3)
    training.train()
    log = training.state.log_history[2]
    assert log["replay/draws"] == 3
    assert log["replay/increment_p5"] <= log["replay/increment_p95"]
    assert (training.replay.embeddings is None) == (select in ("loss", "mir", "mir-top"))


def test_only_adapters_move_and_embeddings_are_the_base_models(tmp_path: Path) -> None:
    base: Any = tiny.qwen2()
    model = tiny.with_lora(tiny.qwen2())
    before = copy.deepcopy(model.state_dict())
    training = trainer(tmp_path, model=model)
    training.train()
    for name, value in training.model.state_dict().items():
        assert torch.equal(value, before[name]) == ("lora" not in name), name
    assert training.state.log_history[2]["replay/loss"] is not None
    rows = []
    words = training.processing_class
    for row in training.train_dataset.select(range(8)):
        ids = torch.tensor(words(row["prompt"])["input_ids"])
        rows.append(base.model(input_ids=ids[None]).last_hidden_state[0].mean(0).detach())
    unit = torch.nn.functional.normalize(torch.stack(rows), dim=1)
    centered = torch.nn.functional.normalize(unit - unit.mean(0), dim=1)
    torch.testing.assert_close(training.replay.embeddings, centered, rtol=1e-3, atol=1e-4)
    # Of eight problems, each has seven neighbors: the farthest stands for the eighth.
    farthest = (1 - centered @ centered.T).amax(dim=1).sort().values
    d0 = float(farthest[3] + farthest[4]) / 2
    assert training.replay.weigher.selection.recipe.distance.d0 == pytest.approx(d0, rel=1e-3)


def test_gradient_checkpointing_changes_nothing(tmp_path: Path) -> None:
    results = []
    for on in (False, True):
        training = trainer(tmp_path, gradient_checkpointing=on, optim="sgd")
        training.train()
        results.append(weights(training))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=1e-4, atol=1e-6)


def test_half_precision_autocast_reaches_scoring_and_replay(tmp_path: Path) -> None:
    training = trainer(tmp_path, bf16=True, max_steps=3)
    kinds: set[tuple[bool, torch.dtype]] = set()
    training.model.model.layers[0].mlp.gate_proj.register_forward_hook(
        lambda module, inputs, output: kinds.add((module.training, output.dtype))
    )
    training.train()
    assert training.replay.costs["forwards"] > 0
    # Sampling and embeddings run in the weights' own precision.
    assert {(False, torch.bfloat16), (True, torch.bfloat16)} <= kinds
    assert all(bool(value.isfinite().all()) for value in weights(training).values())
