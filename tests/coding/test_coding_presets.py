"""Presets: the paper's numbers, and configurations that are refused before any work starts."""

import json
from typing import Any

import pytest

from sphere_replay.coding.config import HOST_NAMES, CodingConfig
from sphere_replay.coding.presets import PRESETS, names, provenance, resolve
from sphere_replay.errors import ConfigError
from sphere_replay.replay import UNLABELLED
from sphere_replay.runs.domains import domain_of
from sphere_replay.runs.folder import identity


def test_there_are_three_presets() -> None:
    assert names() == ["coding-qwen", "coding-smollm2", "coding-micro"]
    assert all(domain_of(name).names() == names() for name in names())


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("select", UNLABELLED)
def test_every_selection_resolves_and_survives_json(preset: str, select: str) -> None:
    for host in HOST_NAMES:
        if host == "none" and select != "uniform":
            with pytest.raises(ConfigError, match="none replays nothing"):
                resolve(preset, host, select)
            continue
        config = resolve(preset, host, select, seed=3)
        assert (config.host, config.select, config.seed, config.pair) == (host, select, 3, 3)
        assert CodingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_the_settings_of_qwen_are_the_papers() -> None:
    config = resolve("coding-qwen", "er", "sphere")
    assert config.model == "Qwen/Qwen2.5-Coder-1.5B-Instruct"
    assert (config.train, config.evaluation, config.passes) == (120, 100, 2)
    assert (config.batch, config.generations, config.epsilon) == (8, 8, 0.2)
    assert (config.max_prompt, config.max_completion) == (1536, 512)
    assert (config.rank, config.lora_alpha, config.lr, config.virtual_lr) == (16, 32, 1e-4, 1e-4)
    assert (config.capacity, config.pool, config.replay_batch) == (480, 48, 8)
    assert (config.alpha, config.sampler) == (0.5, "vllm")


def test_no_preset_runs_programs_without_isolation() -> None:
    assert not any(resolve(preset).unsafe for preset in PRESETS)
    assert resolve("coding-micro", unsafe=True).unsafe


def test_selections_have_options_which_are_part_of_the_identity() -> None:
    plain = resolve("coding-micro", "er", "sphere")
    assert "select_options" not in plain.to_dict()  # nor in runs that were made without
    alone = resolve("coding-micro", "er", "sphere", select_options={"leave_one_out": True})
    assert alone.constants["selection"]["recipe"]["leave_one_out"] is True
    assert CodingConfig.from_dict(json.loads(json.dumps(alone.to_dict()))) == alone
    assert identity(alone.to_dict()) != identity(plain.to_dict())
    for options, message in (
        ({"leave": True}, "selection sphere: unknown option 'leave'"),
        ({"agreement": 0.5}, "problems have none"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve("coding-micro", "er", "sphere", select_options=options)


def test_where_values_come_from() -> None:
    paper, micro = resolve("coding-qwen"), resolve("coding-micro")
    assert not any(provenance(paper, name) for name in ("lr", "rank", "pool", "alpha"))
    assert "without saying how much" in provenance(paper, "favor")
    assert provenance(micro, "pool") == "chosen here; the paper's is 48"
    assert provenance(micro, "rank") == "chosen here; the paper's is 16"
    assert provenance(micro, "wall") == "chosen here"
    assert not provenance(micro, "seed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "batch must be positive"),
        ({"generations": 1}, "generations must be at least 2"),
        ({"micro_batch": 5}, "micro-batches of 5 do not divide"),
        ({"pool": 200}, "a pool of 200 distinct problems cannot come from a memory of 160"),
        ({"alpha": 1.5}, r"alpha must lie in \[0, 1\]"),
        ({"sampler": "vlm"}, "did you mean vllm"),
        ({"device": "gpu"}, "unknown device"),
        ({"evaluate_on": "test"}, "unknown evaluate_on"),
        ({"select": "sfere"}, "did you mean sphere"),
        ({"host": "grpo"}, "unknown host"),
        ({"stages": "text,text"}, "names a stage twice"),
        ({"model": "smollm2"}, "knows nothing but micro-problems"),
        ({"model": ""}, "model takes a name"),
        ({"pol": 3}, "did you mean pool"),
        ({"wall": float("inf")}, "wall must be finite"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("coding-micro", **settings)


def test_an_unknown_preset_has_a_close_one() -> None:
    with pytest.raises(ConfigError, match="did you mean coding-micro"):
        resolve("coding-mikro")
