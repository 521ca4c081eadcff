"""What one update of a trainer is made of, against gradients written out by hand."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback

from integrations.training import KINDS, Gradients, plain_class, same_weights, trainer, weights
from language import tiny
from sphere_replay.integrations.transformers import ReplayArguments, SphereCallback
from sphere_replay.language import Row, features_and_losses, pad_rows, rows_of

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


class Witness(TrainerCallback):
    """Notes where each update starts, what it replays, and what the memory had seen by then."""

    def __init__(self) -> None:
        self.weights: list[dict[str, Tensor]] = []
        self.replayed: list[list[Row]] = []
        self.seen: list[int] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.weights.append(copy.deepcopy(kwargs["model"].state_dict()))
        self.replayed.append([])

    def watch(self, session: Any) -> None:
        draw = session.draw

        def watched(*arguments: Any, **options: Any) -> Any:
            chosen = draw(*arguments, **options)
            self.replayed[-1] = session.memory.rows(chosen.indices)
            self.seen.append(session.memory.slots.seen)
            return chosen

        session.draw = watched


def by_hand(
    model: Any, window: list[list[Row]], replayed: list[Row], strength: float
) -> dict[str, Tensor]:
    """Gradient of the window's loss plus strength times the mean over the replayed examples."""
    model.train()
    if model.config.is_encoder_decoder:
        # T5 takes no notice of the number of items in a window, so the trainer adds up the means.
        stream = sum(model(**pad_rows(rows, tiny.PAD)).loss for rows in window)
    else:
        # The mean over all target tokens of the window.
        stream = model(**pad_rows([row for rows in window for row in rows], tiny.PAD)).loss
    if replayed:
        each = [model(**pad_rows([row], tiny.PAD)).loss for row in replayed]
        stream = stream + strength * torch.stack(each).mean()
    model.zero_grad()
    torch.autograd.backward(stream)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@EVERY_KIND
@pytest.mark.parametrize("strength", [1.0, 0.3])
def test_gradients_are_stream_plus_strength_times_mean_replay(
    kind: str, strength: float, tmp_path: Path
) -> None:
    gradients, witness = Gradients(), Witness()
    training = trainer(
        kind,
        tmp_path,
        replay={"strength": strength},
        callbacks=[witness, gradients],
        gradient_accumulation_steps=2,
        max_steps=5,
        max_grad_norm=0.0,
        learning_rate=1e-3,
    )
    witness.watch(training.replay)
    model: Any = tiny.t5() if kind == "seq2seq" else tiny.qwen2()
    training.train()
    loader = list(training.get_train_dataloader())
    windows = [loader[2 * index : 2 * index + 2] for index in range(5)]
    assert [len(rows) for rows in witness.replayed] == [0, 3, 3, 3, 3]
    assert witness.seen == [8, 16, 24, 32]  # admitted only after the draw, once an update
    for index, window in enumerate(windows):
        model.load_state_dict(witness.weights[index])
        rows = [_rows(batch, kind) for batch in window]
        wanted = by_hand(model, rows, witness.replayed[index], strength)
        assert wanted.keys() == gradients.seen[index].keys()
        for name, gradient in gradients.seen[index].items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=1e-5)


def _rows(batch: Any, kind: str) -> list[Row]:
    return rows_of(batch, encoder_decoder=kind == "seq2seq")


@EVERY_KIND
def test_without_strength_it_is_the_plain_trainer(kind: str, tmp_path: Path) -> None:
    replaying = trainer(kind, tmp_path, replay={"strength": 0.0, "select": "uniform"})
    plain = trainer(kind, tmp_path, base=plain_class(kind))
    replaying.train()
    plain.train()
    assert same_weights(weights(replaying), weights(plain))


def test_half_precision_autocast_reaches_scoring_and_replay(tmp_path: Path) -> None:
    gradients = {}
    for bf16 in (False, True):
        kept, witness = Gradients(), Witness()
        training = trainer(
            "causal",
            tmp_path,
            callbacks=[witness, kept],
            bf16=bf16,
            max_steps=2,
            learning_rate=1e-3,
            max_grad_norm=0.0,
        )
        witness.watch(training.replay)
        dtypes: set[torch.dtype] = set()
        training.model.model.layers[0].mlp.gate_proj.register_forward_hook(
            lambda module, inputs, out, seen=dtypes: seen.add(out.dtype)
        )
        training.train()
        assert dtypes == {torch.bfloat16 if bf16 else torch.float32}
        gradients[bf16] = kept.seen[1]
    for name, exact in gradients[False].items():
        assert not torch.equal(gradients[True][name], exact)
        torch.testing.assert_close(gradients[True][name], exact, rtol=0.2, atol=0.05)


@pytest.mark.parametrize("kind", ["seq2seq", "causal"])
def test_gradient_checkpointing_changes_nothing(kind: str, tmp_path: Path) -> None:
    results = []
    for reentrant in (None, False, True):
        checkpointing: dict[str, Any] = {}
        if reentrant is not None:
            checkpointing["gradient_checkpointing"] = True
            checkpointing["gradient_checkpointing_kwargs"] = {"use_reentrant": reentrant}
        model: Any = tiny.t5() if kind == "seq2seq" else tiny.qwen2()
        if reentrant:
            model.enable_input_require_grads()
        training = trainer(kind, tmp_path, model=model, max_steps=4, optim="sgd", **checkpointing)
        training.train()
        results.append(weights(training))
    for other in results[1:]:
        for name, value in results[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-5)


@EVERY_KIND
def test_only_adapters_move(kind: str, tmp_path: Path) -> None:
    model = tiny.with_lora(tiny.t5() if kind == "seq2seq" else tiny.qwen2())
    before = copy.deepcopy(model.state_dict())
    training = trainer(kind, tmp_path, model=model)
    training.train()
    for name, value in training.model.state_dict().items():
        assert torch.equal(value, before[name]) == ("lora" not in name)
    assert training.replay.engine.weighting is not None


class Scaler:
    """Stands for an enabled gradient scaler, which needs a GPU."""

    def is_enabled(self) -> bool:
        return True

    def get_scale(self) -> float:
        return 4096.0


@pytest.mark.parametrize("unscaled", [True, False])
def test_a_gradient_scaler_is_honored(tmp_path: Path, unscaled: bool) -> None:
    factor = 1.0 if unscaled else 4096.0
    gradients: list[list[Tensor]] = []
    for scaler in (None, Scaler()):
        training = trainer("causal", tmp_path)
        session, model = training.replay, training.model
        batches = list(training.get_train_dataloader())
        session.keep_rows(_rows(batches[0], "causal"))
        session.admit()
        batch = pad_rows(_rows(batches[1], "causal"), tiny.PAD)
        loss = features_and_losses(model, batch)[1].mean()
        torch.autograd.backward(loss * (1.0 if scaler is None else factor))
        session.keep(batches[1], None)
        session.step(model, scaler, unscaled=unscaled)
        gradients.append([p.grad for p in model.parameters()])
    for plain, scaled in zip(*gradients, strict=True):
        torch.testing.assert_close(plain * factor, scaled, rtol=1e-4, atol=1e-6 * factor)


def test_an_overflowed_window_is_admitted_but_not_replayed(tmp_path: Path) -> None:
    training = trainer("causal", tmp_path)
    session, model = training.replay, training.model
    batches = list(training.get_train_dataloader())
    session.keep_rows(_rows(batches[0], "causal"))
    session.admit()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    session.keep(batches[1], None)
    session.step(model, Scaler())
    assert len(session.memory) == 8
    assert "replay/loss" not in session.metrics()


@pytest.mark.parametrize("kind", KINDS)
def test_the_callback_does_what_the_trainer_does_where_nothing_is_clipped(
    kind: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.0}
    arguments = ReplayArguments(capacity=16, pool=12, every=2, replay_batch=3)
    own = trainer(kind, tmp_path, replay=arguments, **options)
    callback = SphereCallback(arguments)
    other = trainer(kind, tmp_path, base=plain_class(kind), callbacks=[callback], **options)
    own.train()
    other.train()
    assert callback.session is not None
    assert callback.session.memory.slots.seen == 48
    assert same_weights(weights(own), weights(other))
    assert not other.model._forward_pre_hooks


def test_the_callback_clips_the_sum(tmp_path: Path) -> None:
    gradients = Gradients()
    callback = SphereCallback(ReplayArguments(capacity=16, pool=12, replay_batch=3))
    training = trainer(
        "causal", tmp_path, base=Trainer, callbacks=[callback, gradients], max_grad_norm=0.5
    )
    training.train()
    for seen in gradients.seen:
        norm = torch.stack([gradient.norm() for gradient in seen.values()]).norm()
        assert norm == pytest.approx(0.5, rel=1e-3)
