"""What a log of GRPO with replay tells."""

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from integrations.trl.grpo import trainer

NAMES = {"mass", "ess", "mixed", "empty", "reward", "draws", "distinct", "loss", "fallback"}
NAMES |= {"memory", "increment_p5", "increment_p50", "increment_p95"}


class Tracker(TrainerCallback):
    """Stands for a service that listens to logs."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append(dict(kwargs["logs"]))


def test_metrics_reach_the_history_and_trackers(tmp_path: Path) -> None:
    tracker = Tracker()
    training = trainer(tmp_path, callbacks=[tracker])
    training.train()
    logs = [entry for entry in training.state.log_history if "loss" in entry]
    assert len(logs) == 4
    assert [name for name in logs[0] if name.startswith("replay/")] == ["replay/memory"]
    for entry, heard in zip(logs[1:], tracker.heard[1:], strict=False):
        replay = {name: value for name, value in entry.items() if name.startswith("replay/")}
        assert {f"replay/{name}" for name in NAMES} <= replay.keys()
        assert replay.items() <= heard.items()
        assert 0 < replay["replay/mass"] <= 1
        assert 1 <= replay["replay/ess"] <= 5
        assert replay["replay/distinct"] <= replay["replay/draws"] == 3
    assert [entry["replay/memory"] for entry in logs] == [2, 4, 6, 8]


def test_a_log_is_the_mean_since_the_last(tmp_path: Path) -> None:
    logs = {}
    for every in (1, 3):
        training = trainer(tmp_path, logging_steps=every, max_steps=3)
        training.train()
        logs[every] = [entry for entry in training.state.log_history if "loss" in entry]
    for name in ("reward", "mixed", "loss", "increment_p50"):
        single = [entry[f"replay/{name}"] for entry in logs[1][1:]]
        assert logs[3][0][f"replay/{name}"] == pytest.approx(sum(single) / 2), name


def test_evaluation_is_neither_noted_nor_replayed(tmp_path: Path) -> None:
    training = trainer(tmp_path, eval_strategy="no", per_device_eval_batch_size=4)
    training.train()
    state, costs = training.replay.memory.state_dict(), dict(training.replay.costs)
    training.evaluate(training.train_dataset.select(range(4)))
    assert training.replay.costs == costs
    assert all((state[k] == v).all() for k, v in training.replay.memory.state_dict().items())
    assert not any(name.startswith("replay/") for name in training.state.log_history[-1])


def test_reward_functions_can_tell_candidates_from_the_stream(tmp_path: Path) -> None:
    seen: list[bool] = []
    names: list[str] = []

    def reward(completion_ids: Any, **columns: Any) -> list[float]:
        seen.append(training.replay.sampling)
        names.extend(columns["id"])
        return [float(sum(ids) % 2) for ids in completion_ids]

    training = trainer(tmp_path, reward=reward, max_steps=2)
    training.train()
    assert seen == [False, False, True]
    assert set(names[:8]) == {"problem-0", "problem-1"}
    assert set(names[8:16]) == {"problem-2", "problem-3"}
    assert set(names[16:]) == {"problem-0", "problem-1"}
