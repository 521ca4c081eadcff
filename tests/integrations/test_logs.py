"""Replay shows in the trainer's logs and leaves evaluation alone."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

from integrations.training import trainer
from sphere_replay.integrations import transformers
from sphere_replay.integrations.transformers import ReplayArguments, SphereCallback

NUMBERS = ("mass", "ess", "increment_p5", "increment_p50", "increment_p95", "loss", "memory")


class Tracker(TrainerCallback):
    """Stands where the trackers of `report_to` stand: it hears of logs, and of nothing else."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append(dict(kwargs["logs"]))


@pytest.mark.parametrize("kind", ["seq2seq", "sft"])
def test_trackers_hear_of_replay(kind: str, tmp_path: Path) -> None:
    tracker = Tracker()
    training = trainer(
        kind,
        tmp_path,
        replay={"task_field": "task"},
        callbacks=[tracker],
        max_steps=12,
        logging_steps=3,
    )
    training.train()
    steps = [logs for logs in tracker.heard if "loss" in logs]
    assert len(steps) == 4
    for logs in steps:
        assert {f"replay/{name}" for name in NUMBERS} <= logs.keys()
        shares = [value for name, value in logs.items() if name.startswith("replay/share/")]
        assert sum(shares) == pytest.approx(1)
        assert 0.5 <= logs["replay/mass"] <= 1
    # The first half of the stream is task 0; only then can task 1 be replayed.
    assert "replay/share/task_1" not in steps[1]
    assert steps[3]["replay/share/task_1"] > 0
    recorded = [entry for entry in training.state.log_history if "replay/ess" in entry]
    assert [entry["replay/ess"] for entry in recorded] == [logs["replay/ess"] for logs in steps]
    assert not any("replay/mass" in logs for logs in tracker.heard if "train_runtime" in logs)


def test_a_callback_tells_the_history_and_those_after_it(tmp_path: Path) -> None:
    tracker, callback = Tracker(), SphereCallback(ReplayArguments(capacity=16, pool=12))
    training = trainer("causal", tmp_path, base=Trainer, callbacks=[callback, tracker])
    training.train()
    assert "replay/mass" in tracker.heard[2]
    assert training.state.log_history[2]["replay/mass"] == tracker.heard[2]["replay/mass"]


def test_evaluation_is_not_replayed_nor_remembered(tmp_path: Path) -> None:
    training = trainer(
        "seq2seq",
        tmp_path,
        replay={"task_field": "task"},
        eval_strategy="steps",
        eval_steps=3,
        evaluated=8,  # with the column of tasks
        predict_with_generate=True,
        generation_max_length=4,
    )
    training.compute_metrics = lambda prediction: {"rows": len(prediction.predictions)}
    training.train()
    assert training.replay.memory.slots.seen == 24
    evaluations = [entry for entry in training.state.log_history if "eval_loss" in entry]
    assert [entry["eval_rows"] for entry in evaluations] == [8, 8]


def test_the_callback_notes_no_evaluation(tmp_path: Path) -> None:
    callback = SphereCallback(ReplayArguments(capacity=16, pool=12))
    evaluating: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "evaluated": 8}
    training = trainer("causal", tmp_path, base=Trainer, callbacks=[callback], **evaluating)
    training.train()
    assert callback.session is not None
    assert callback.session.memory.slots.seen == 24


def test_only_the_trainers_there_are_can_be_imported() -> None:
    assert transformers.SphereSFTTrainer.__mro__[1] is transformers.ReplayMixin
    with pytest.raises(AttributeError, match="has no attribute 'SphereDPOTrainer'"):
        _ = transformers.SphereDPOTrainer
