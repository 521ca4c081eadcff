"""What cannot work is refused before training starts, in a sentence that says what to do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset  # type: ignore[import-untyped]  # has no types

import sphere_replay.integrations.trl as integration
from integrations.trl.grpo import problems, trainer
from sphere_replay.integrations.trl import GroupReplayArguments
from sphere_replay.integrations.trl.problems import Problems
from sphere_replay.integrations.trl.trainer import check_settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity must be a whole number of at least 1, got 0"),
        ({"replay_batch": 2.5}, "replay_batch must be a whole number of at least 1, got 2.5"),
        ({"pool": True}, "pool must be a whole number of at least 1, got True"),
        ({"capacity": 40}, "a pool of 48 distinct problems cannot come from .* capacity=40"),
        ({"select": "spher"}, "unknown selection 'spher': did you mean sphere"),
        ({"select": "nothing"}, "unknown selection 'nothing'"),
        ({"alpha": 1.5}, r"alpha must lie in \[0, 1\]"),
        ({"virtual_lr": -0.1}, "virtual_lr must be finite and not negative, got -0.1"),
        ({"strength": -1.0}, "strength must be finite and not negative, got -1"),
        ({"favor": 0.5}, "favor must be finite and at least 1, got 0.5"),
        ({"id_field": ""}, "id_field must name the column"),
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupReplayArguments(**options)


def test_a_training_set_must_name_its_problems(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column 'id', .*it has prompt: add it; or pass id"):
        trainer(tmp_path, dataset=problems().remove_columns("id"))
    with pytest.raises(ValueError, match="no column 'task', which names each row's problem"):
        trainer(tmp_path, replay={"id_field": "task"})
    training = trainer(tmp_path, dataset=problems().rename_column("id", "task"), replay=_TASK)
    assert len(training.replay.problems) == 8


_TASK = {"id_field": "task"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the training set is empty"),
        ([{"id": "a"}], "no column 'prompt', which holds the prompt; it has id: add it$"),
        (
            [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "x"}, {"id": "a", "prompt": "y"}],
            "rows 0 and 2 of the training set have different prompts under one name, 'a'",
        ),
        ([{"id": 1.5, "prompt": "x"}], "row 0 of the training set names its problem 1.5"),
        ([{"id": 1, "prompt": "x", "image": 2}], "has a column 'image': .* text-only"),
    ],
)
def test_rows_that_cannot_be_replayed(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Problems.of(Dataset.from_list(rows), "id")


def test_a_stream_that_is_read_once_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pass a datasets\.Dataset, not an iterable one"):
        trainer(tmp_path, dataset=problems().to_iterable_dataset())


def test_a_conversation_needs_a_chat_template(tmp_path: Path) -> None:
    rows = [{"id": k, "prompt": [{"role": "user", "content": f"sun {k}"}]} for k in range(4)]
    with pytest.raises(ValueError, match=r"row 0 .* is a conversation, but the tokenizer has no"):
        trainer(tmp_path, dataset=Dataset.from_list(rows))


def test_an_empty_prompt_is_named(tmp_path: Path) -> None:
    rows = [{"id": "a", "prompt": "sun"}, {"id": "b", "prompt": ""}]
    training = trainer(tmp_path, dataset=Dataset.from_list(rows))
    with pytest.raises(ValueError, match="the prompt of problem 'b' has no tokens"):
        training.train()
    assert training.state.global_step == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_iterations": 2}, "num_iterations=2, .* several updates on the same programs"),
        ({"steps_per_generation": 4}, "steps_per_generation=4 and gradient_accumulation_steps=2"),
        ({"remove_unused_columns": True}, "remove_unused_columns=True drops the column"),
    ],
)
def test_settings_that_do_not_fit(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fp16": True}, "use bf16=True"),
        ({"use_liger_kernel": True}, "set use_liger_kernel=False"),
        ({"top_entropy_quantile": 0.5}, "ranks the tokens of all processes together"),
    ],
)
def test_settings_that_need_other_hardware(options: dict[str, Any], message: str) -> None:
    fine: dict[str, Any] = {
        "fp16": False,
        "use_liger_kernel": False,
        "num_iterations": 1,
        "gradient_accumulation_steps": 4,
        "steps_per_generation": 2,
        "remove_unused_columns": False,
        "top_entropy_quantile": 1.0,
    }
    two = SimpleNamespace(num_processes=2)
    check_settings(SimpleNamespace(args=SimpleNamespace(**fine), accelerator=two))
    args = SimpleNamespace(**(fine | options))
    with pytest.raises(ValueError, match=message):
        check_settings(SimpleNamespace(args=args, accelerator=two))
    environments = {"environment_factories": {None: object}}
    with pytest.raises(ValueError, match="environments make up their prompts"):
        check_settings(
            SimpleNamespace(args=SimpleNamespace(**fine), accelerator=two, **environments)
        )


def test_only_what_there_is_can_be_imported() -> None:
    assert integration.SphereGRPOTrainer.__mro__[1].__name__ == "GRPOTrainer"
    assert integration.GroupReplay.__name__ == "GroupReplay"
    with pytest.raises(AttributeError, match="has no attribute 'SphereRLOOTrainer'"):
        _ = integration.SphereRLOOTrainer
