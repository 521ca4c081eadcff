"""A training that was cut short ends as if it had not been, to the last bit."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from integrations.training import KINDS, history, same_weights, trainer, weights
from language import tiny
from sphere_replay.errors import DataError
from sphere_replay.integrations.transformers import (
    ReplayArguments,
    SphereCallback,
    bookkeeping,
)
from states import spelled

SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 5, "max_steps": 11}


def model_for(kind: str) -> Any:
    """With dropout, so that the random state matters too."""
    return tiny.t5(dropout=0.1) if kind == "seq2seq" else tiny.qwen2(dropout=0.1)


def same_states(one: Any, other: Any) -> bool:
    return spelled(one.state_dict()) == spelled(other.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_training_equals_the_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "examples_": 88, "logging_steps": 2, **SAVING}
    replay = {"task_field": "task"}
    whole = trainer(kind, tmp_path / "a", replay=replay, model=model_for(kind), **options)
    whole.train()
    # A copy elsewhere, as after a move to another machine.
    saved = shutil.copytree(tmp_path / "a" / "checkpoint-5", tmp_path / "b" / "kept")
    rest = trainer(kind, tmp_path / "c", replay=replay, model=model_for(kind), **options)
    rest.train(resume_from_checkpoint=str(saved))
    assert same_weights(weights(whole), weights(rest))
    assert same_states(whole.replay, rest.replay)
    for one, other in zip(history(whole)[:-1], history(rest)[:-1], strict=True):
        replayed = {name: one[name] for name in one if name.startswith("replay/") or name == "step"}
        assert replayed.items() <= other.items()
    names = {path.name for path in saved.iterdir()}
    assert {"replay.json", "replay.safetensors"} <= names


def test_the_last_checkpoint_of_the_output_folder_will_do(tmp_path: Path) -> None:
    whole = trainer("causal", tmp_path / "a", **SAVING)
    whole.train()
    shutil.copytree(tmp_path / "a" / "checkpoint-5", tmp_path / "b" / "checkpoint-5")
    rest = trainer("causal", tmp_path / "b", **SAVING)
    rest.train(resume_from_checkpoint=True)
    assert same_weights(weights(whole), weights(rest))
    assert same_states(whole.replay, rest.replay)


def test_the_callback_resumes_too(tmp_path: Path) -> None:
    arguments = ReplayArguments(capacity=16, pool=12, every=2, replay_batch=3)
    callbacks = [SphereCallback(arguments) for _ in range(2)]
    whole = trainer("causal", tmp_path / "a", base=Trainer, callbacks=callbacks[:1], **SAVING)
    whole.train()
    shutil.copytree(tmp_path / "a" / "checkpoint-5", tmp_path / "b" / "checkpoint-5")
    rest = trainer("causal", tmp_path / "b", base=Trainer, callbacks=callbacks[1:], **SAVING)
    rest.train(resume_from_checkpoint=True)
    assert same_weights(weights(whole), weights(rest))
    assert same_states(callbacks[0].session, callbacks[1].session)


def test_memory_goes_from_one_trainer_to_the_next(tmp_path: Path) -> None:
    first = trainer("causal", tmp_path, max_steps=4)
    first.train()
    held = first.replay.memory.slots.versions
    second = trainer("causal", tmp_path, replay=first.replay, model=first.model, max_steps=2)
    second.train()
    assert second.replay is first.replay
    assert second.replay.task == 1
    assert "replay/share/task_0" in second.state.log_history[0]
    assert second.replay.memory.slots.seen == 24
    assert not torch.equal(second.replay.memory.slots.versions, held)


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    trainer("causal", tmp_path, save_strategy="steps", save_steps=2, max_steps=2).train()
    folder = tmp_path / "checkpoint-2"

    def resume(**replay: Any) -> None:
        again = trainer("causal", tmp_path / "again", replay=replay, max_steps=3)
        again.train(resume_from_checkpoint=str(folder))

    with pytest.raises(ValueError, match=r"alpha: saved 0.5, now 0.25; select: saved 's"):
        resume(alpha=0.25, select="mir")
    content = (folder / "replay.safetensors").read_bytes()
    (folder / "replay.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="does not match the checksum"):
        resume()
    (folder / "replay.json").unlink()
    with pytest.raises(ValueError, match=r"holds no replay state.* allow_plain_checkpoint=True"):
        resume()


@pytest.mark.parametrize("schedule", ["published", "economical"])
def test_settings_that_mean_nothing_may_be_younger_than_a_checkpoint(
    tmp_path: Path, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ReplayArguments(schedule=schedule)
    before = {k: v for k, v in bookkeeping._spelled(arguments).items() if k != "steady"}
    with monkeypatch.context() as patch:
        patch.setattr(bookkeeping, "_spelled", lambda _: before)
        bookkeeping.save_state(tmp_path, {"draws": 3}, arguments)
    if schedule == "published":
        assert bookkeeping.load_state(tmp_path, arguments) == {"draws": 3}
    else:
        with pytest.raises(DataError, match=r"steady: saved None, now 0\.4"):
            bookkeeping.load_state(tmp_path, arguments)


def test_replay_may_begin_at_a_plain_checkpoint(tmp_path: Path) -> None:
    plain = trainer("causal", tmp_path, base=Trainer, save_strategy="steps", save_steps=2)
    plain.train()
    choice = {"allow_plain_checkpoint": True}
    saving: dict[str, Any] = {"save_strategy": "steps", "max_steps": 8}
    begun = trainer("causal", tmp_path / "b", replay=choice, **saving)
    begun.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert begun.replay.memory.slots.seen == 6 * 4
    # From its own checkpoints it goes on, and the choice is no other setting of replay.
    rest = trainer("causal", tmp_path / "c", **saving)
    rest.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-6"))
    assert same_weights(weights(begun), weights(rest))
    assert same_states(begun.replay, rest.replay)
