"""What cannot work is refused before training starts, in a sentence that says what to do."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2ForSequenceClassification, Trainer

from integrations.training import KINDS, trainer
from language import tiny
from sphere_replay.allocation import Sphere
from sphere_replay.errors import ConfigError
from sphere_replay.integrations.transformers import ReplayArguments, SphereCallback


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replay_batch": 5, "capacity": 4}, "5 distinct memories cannot be .* from capacity=4"),
        ({"replay_batch": 5, "pool": 4}, "5 distinct memories cannot be drawn from pool=4"),
        ({"replay_batch": 5, "top": 4, "select": "mir-top"}, "cannot be drawn from top=4"),
        ({"select": "spher"}, "unknown selection 'spher': did you mean sphere"),
        ({"alpha": 1.5}, r"alpha must lie in \[0, 1\]"),
        ({"virtual_lr": -0.1}, "virtual_lr must be finite and not negative, got -0.1"),
        ({"virtual_lr": None}, "virtual_lr must be a number"),
        ({"strength": -1.0}, "strength must be finite and not negative, got -1"),
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"capacity": 2.5}, "capacity must be a whole number"),
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplayArguments(**options)


def test_what_only_one_selection_reads_limits_no_other() -> None:
    assert ReplayArguments(replay_batch=5, top=4, select="mir").replay_batch == 5


def test_packing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="packing=True joins examples"):
        trainer("sft", tmp_path, packing=True, packing_strategy="wrapped")


@pytest.mark.parametrize("callback", [True, False])
def test_a_model_without_states_is_refused(tmp_path: Path, callback: bool) -> None:
    classifier: Any = Qwen2ForSequenceClassification
    model = classifier(tiny.qwen2().config)
    extra: dict[str, Any] = {"base": Trainer, "callbacks": [SphereCallback(ReplayArguments())]}
    training = trainer("causal", tmp_path, model=model, **(extra if callback else {}))
    with pytest.raises(ValueError, match="does not give the states of its last decoder layer"):
        training.train()
    assert training.state.global_step == 0


@pytest.mark.parametrize("as_list", [True, False])
def test_an_example_beyond_the_models_limit_is_refused(tmp_path: Path, as_list: bool) -> None:
    training = trainer("causal", tmp_path, model=tiny.qwen2(positions=8))
    if as_list:
        training.train_dataset = list(training.train_dataset)
    with pytest.raises(ValueError, match="has 9 tokens but the model's limit is 8"):
        training.train()
    assert training.state.global_step == 0


def test_an_example_tokenized_on_the_fly_is_checked_when_it_comes(tmp_path: Path) -> None:
    training = trainer("causal", tmp_path, model=tiny.qwen2(positions=8))
    batches = list(training.get_train_dataloader())
    with pytest.raises(ValueError, match="but the model's limit is 8"):
        [training.replay.keep(batch, None) for batch in batches]


def test_a_training_set_without_targets_is_refused(tmp_path: Path) -> None:
    training = trainer("causal", tmp_path)
    masked = [[-100] * len(labels) for labels in training.train_dataset["labels"]]
    training.train_dataset = training.train_dataset.remove_columns("labels").add_column(
        "labels", masked
    )
    with pytest.raises(ValueError, match="all labels of the training set are -100"):
        training.train()


def test_targets_that_the_collator_masks_are_a_warning_and_then_an_error() -> None:
    replay = tiny.language_replay()
    masked = [
        {**row, "labels": -100 + 0 * row["labels"]} for row in tiny.rows(60, encoder_decoder=False)
    ]
    replay.keep_rows(masked)
    with pytest.warns(UserWarning, match="none of the first 60 examples has a target token"):
        replay.admit()
    replay.keep_rows(masked)
    with pytest.raises(ValueError, match="none of the first 120 examples"):
        replay.admit()


@pytest.mark.parametrize("kind", [*KINDS, "callback"])
def test_free_text_has_no_labels_to_vote_on(tmp_path: Path, kind: str) -> None:
    arguments = ReplayArguments(select="sphere-calibrated", capacity=70, pool=64)
    training = _on_answers(tmp_path, kind, arguments, distinct=80)
    with pytest.raises(ConfigError, match="free text: most of the 80 that were looked at occur"):
        training.train()
    assert training.state.global_step == 0


@pytest.mark.parametrize(
    ("select", "distinct"),
    [("sphere", 80), (Sphere.calibrated(agreement=0), 80), ("sphere-calibrated", 40)],
)
def test_labels_and_who_asks_for_none_are_trained_on(
    tmp_path: Path, select: Any, distinct: int
) -> None:
    arguments = ReplayArguments(select=select, capacity=70, pool=64)
    training = _on_answers(tmp_path, "causal", arguments, distinct)
    training.train()
    assert training.state.global_step == 1


def test_free_text_that_comes_as_a_stream_is_left_to_the_memories(tmp_path: Path) -> None:
    arguments = ReplayArguments(select="sphere-calibrated", capacity=70, pool=64)
    training = _on_answers(tmp_path, "causal", arguments, distinct=80)
    training.train_dataset = training.train_dataset.to_iterable_dataset()
    training.train()
    assert training.state.global_step == 1


def _on_answers(folder: Path, kind: str, arguments: ReplayArguments, distinct: int) -> Any:
    """A training on 80 examples with so many different answers."""
    callback = {"base": Trainer, "callbacks": [SphereCallback(arguments)]}
    training = trainer(
        "causal" if kind == "callback" else kind,
        folder,
        **(callback if kind == "callback" else {"replay": arguments}),
        examples_=80,
        max_steps=1,
    )

    def answered(row: dict[str, Any], index: int) -> dict[str, Any]:
        high, low = divmod(index % distinct, 50)
        names = [name for name in ("input_ids", "labels") if name in row]
        return {name: [*row[name][:-2], 2 + high, 2 + low] for name in names}

    training.train_dataset = training.train_dataset.map(answered, with_indices=True)
    return training


def test_a_task_column_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="task_field='topic' is no column of the training set"):
        trainer("causal", tmp_path, replay={"task_field": "topic"}).train()
    with pytest.raises(ValueError, match="a callback sees only what the model is given"):
        SphereCallback(ReplayArguments(task_field="task"))


def test_a_callback_that_cannot_see_labels_says_so(tmp_path: Path) -> None:
    callback = SphereCallback(ReplayArguments())
    training = trainer(
        "causal", tmp_path, base=Trainer, callbacks=[callback], label_smoothing_factor=0.1
    )
    with pytest.raises(ValueError, match="without labels"):
        training.train()
