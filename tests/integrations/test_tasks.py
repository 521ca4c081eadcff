"""A sequence of tasks is one object: in order, named, and evaluated after each of its tasks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict  # type: ignore[import-untyped]  # has no types
from transformers import DataCollatorForSeq2Seq, Trainer

from integrations.test_logs import Tracker
from integrations.training import ARGUMENTS, settings, tokenized, tokenizer, trainer
from language import tiny
from sphere_replay.integrations.transformers import (
    EvaluationMatrix,
    ReplayArguments,
    SphereTrainer,
    TaskEvaluation,
    TaskSequence,
)

NAMES = ["warm", "color", "again"]


def parts() -> dict[str, Dataset]:
    """Three tasks of 10, 8 and 9 examples."""
    whole = tokenized(48, encoder_decoder=False).remove_columns("task")
    rows = {"warm": range(10), "color": range(24, 32), "again": range(10, 19)}
    return {name: whole.select(list(rows[name])) for name in NAMES}


def sequence(**options: Any) -> TaskSequence:
    evaluation = {name: data.select(range(4)) for name, data in parts().items()}
    return TaskSequence(parts(), evaluation, **options)


def training(folder: Path, tasks: Any, base: Any = SphereTrainer, **options: Any) -> Any:
    callbacks = options.pop("callbacks", [])
    given: dict[str, Any] = {"max_steps": -1, "num_train_epochs": 1}
    replay = {"replay": ReplayArguments(**ARGUMENTS)} if base is SphereTrainer else {}
    evaluation = {} if base is SphereTrainer else {"eval_dataset": options.pop("evaluation")}
    return base(
        model=tiny.qwen2(),
        args=settings("causal", folder, **(given | options)),
        train_dataset=tasks,
        data_collator=DataCollatorForSeq2Seq(tokenizer()),
        processing_class=tokenizer(),
        callbacks=callbacks,
        **replay,
        **evaluation,
    )


def test_the_stream_has_the_tasks_in_order_each_shuffled() -> None:
    tasks = sequence(examples=8, passes=2)
    assert tasks.names == NAMES
    assert list(tasks.stream["task"]) == ["warm"] * 16 + ["color"] * 16 + ["again"] * 16
    assert tasks.ends(tasks.sizes(tasks.once)) == [16, 32, 48]
    first = [tuple(ids) for ids in tasks.stream["input_ids"]]
    assert sorted(first[:8]) == sorted(first[8:16])
    assert first[:8] != first[8:16]
    plain = sequence(seed=None)
    assert plain.stream["input_ids"][:10] == parts()["warm"]["input_ids"]


def test_a_trainer_keeps_the_order_and_names_and_evaluates(tmp_path: Path) -> None:
    tracker = Tracker()
    mine = training(
        tmp_path,
        sequence(),
        callbacks=[tracker],
        train_sampling_strategy="random",
        num_train_epochs=2,
    )
    assert mine.args.num_train_epochs == 1  # of the sequence; each task has two passes
    mine.train()
    held = mine.replay.memory
    assert held.slots.seen == 2 * 27
    assert mine.replay.task_names == dict(enumerate(NAMES))
    shares = [{k for k in entry if "share/" in k} for entry in tracker.heard if "loss" in entry]
    assert shares[3] == {"replay/share/warm"}
    assert shares[-1] <= {f"replay/share/{name}" for name in NAMES}
    # Tasks end with examples 20, 36 and 54, in updates of four.
    evaluated = [e["step"] for e in mine.state.log_history if "eval_again_loss" in e]
    assert evaluated == [5, 9, 14]
    matrix = mine.task_evaluation.matrix
    assert matrix.values.shape == (3, 3)
    assert not matrix.values.isnan().any()
    told = [entry for entry in tracker.heard if "eval_forgetting" in entry]
    assert [entry["eval_average"] for entry in tracker.heard if "eval_average" in entry][-1] == (
        pytest.approx(float(matrix.values[2].mean()))
    )
    assert told[-1]["eval_forgetting"] == pytest.approx(matrix.forgetting)
    assert mine.state.log_history[-2]["eval_backward_transfer"] == matrix.backward_transfer


def test_a_metric_that_nobody_computes_is_a_warning(tmp_path: Path) -> None:
    mine = training(tmp_path, sequence())
    mine.task_evaluation.metric = "accuracy"
    with pytest.warns(UserWarning, match=r"of warm gives no 'accuracy', only loss, .* task_metric"):
        mine.train()


def test_tensorboard_shows_the_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path))
    mine = training(tmp_path, sequence(), report_to=["tensorboard"])
    mine.train()
    read = events.EventAccumulator(str(tmp_path)).Reload()
    assert {"eval/forgetting", "eval/backward_transfer", "eval/warm_loss"} <= set(
        read.Tags()["scalars"]
    )
    shown = [event.value for event in read.Scalars("eval/average")]
    assert shown[-1] == pytest.approx(mine.task_evaluation.matrix.average)


def test_a_plain_trainer_takes_stream_and_callback(tmp_path: Path) -> None:
    tasks, tracker = sequence(), Tracker()
    plain: dict[str, Any] = {"base": Trainer, "evaluation": tasks.evaluation}
    ordered = training(tmp_path, tasks.stream, callbacks=[tracker], **plain)
    evaluation = TaskEvaluation(tasks).attach(ordered)
    ordered.train()
    assert evaluation.matrix.learned == 3
    assert "eval_forgetting" in tracker.heard[-2]
    shuffled = training(tmp_path, tasks.stream, train_sampling_strategy="random", **plain)
    TaskEvaluation(tasks).attach(shuffled)
    with pytest.raises(ValueError, match='must not be shuffled: set train_sampling_strategy="seq'):
        shuffled.train()
    twice = training(tmp_path, tasks.stream, num_train_epochs=2, **plain)
    TaskEvaluation(tasks).attach(twice)
    with pytest.raises(ValueError, match="14 updates of 4 examples would begin the sequence again"):
        twice.train()


def test_the_matrix_survives_a_resume(tmp_path: Path) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    whole = training(tmp_path / "a", sequence(), **saving)
    whole.train()
    rest = training(tmp_path / "b", sequence())
    rest.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-4"))
    one, other = whole.task_evaluation.matrix, rest.task_evaluation.matrix
    assert torch.equal(one.values, other.values)
    assert rest.replay.task_names == whole.replay.task_names


VALUES = torch.tensor([[0.8, 0.1, 0.0], [0.9, 0.7, 0.2], [0.5, 0.6, 1.0]], dtype=torch.float64)


def test_forgetting_and_transfer_by_hand() -> None:
    matrix = EvaluationMatrix(("a", "b", "c"), VALUES, "accuracy", greater_is_better=True)
    assert matrix.average == pytest.approx(0.7)
    assert matrix.forgetting == pytest.approx(((0.9 - 0.5) + (0.7 - 0.6)) / 2)
    assert matrix.backward_transfer == pytest.approx(((0.5 - 0.8) + (0.6 - 0.7)) / 2)
    losses = EvaluationMatrix(("a", "b", "c"), 1 - VALUES)
    assert losses.average == pytest.approx(0.3)
    assert losses.forgetting == pytest.approx(matrix.forgetting)
    assert losses.backward_transfer == pytest.approx(matrix.backward_transfer)
    begun = VALUES.clone()
    begun[1:] = torch.nan
    assert EvaluationMatrix(("a", "b", "c"), begun).summary() == {"average": 0.8}


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    values = VALUES.clone()
    values[0, 1:] = torch.nan
    matrix = EvaluationMatrix(("a", "bb", "c"), values, "accuracy", greater_is_better=True)
    assert str(matrix).splitlines() == [
        "accuracy               a        bb         c",
        "after a            0.800         -         -",
        "after bb           0.900     0.700     0.200",
        "after c            0.500     0.600     1.000",
        "average 0.700, forgetting 0.250, backward transfer -0.200",
    ]
    matrix.heat_map(tmp_path / "matrix.png")
    assert (tmp_path / "matrix.png").read_bytes()[1:4] == b"PNG"


def test_splits_of_a_dataset_dict() -> None:
    data = parts()["warm"]
    tasks = TaskSequence({"warm": DatasetDict(train=data, test=data.select([0]))})
    assert len(tasks.stream) == 10
    assert len(tasks.evaluation["warm"]) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "at least one task"),
        ({"a": [1]}, "'a' must be a datasets.Dataset, got list"),
        ({"a": Dataset.from_list([])}, "'a' is empty|datasets.Dataset"),
        (
            {"a": Dataset.from_list([{"x": 1}]), "b": Dataset.from_list([{"y": 1}])},
            "'b' has the columns y, those before it x",
        ),
    ],
)
def test_bad_sequences(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskSequence(given)


def test_a_stranger_among_the_evaluation_sets() -> None:
    with pytest.raises(ValueError, match="colour would be evaluated but is no task"):
        TaskSequence(parts(), {"colour": parts()["color"]})


def test_task_names_in_a_column(tmp_path: Path) -> None:
    training = trainer("causal", tmp_path, replay={"task_field": "task"}, max_steps=12)
    named = [("warm", "color")[task] for task in training.train_dataset["task"]]
    training.train_dataset = training.train_dataset.remove_columns("task").add_column("task", named)
    training.train()
    assert training.replay.task_names == {0: "warm", 1: "color"}
    assert training.replay.memory.tasks.unique().tolist() == [0, 1]
    assert training.state.log_history[1]["replay/share/warm"] == 1


def test_a_stream_that_comes_mixed_is_a_warning_with_the_fix(tmp_path: Path) -> None:
    replay = {"task_field": "task"}
    mixed = trainer("causal", tmp_path, replay=replay)
    mixed.train_dataset = mixed.train_dataset.shuffle(seed=0)
    with pytest.warns(UserWarning, match=r"tasks come mixed: .* Sort it by task, or pass train_da"):
        mixed.get_train_dataloader()
    shuffled = trainer("causal", tmp_path, replay=replay, train_sampling_strategy="random")
    with pytest.warns(UserWarning, match='set train_sampling_strategy="sequential"'):
        shuffled.get_train_dataloader()
