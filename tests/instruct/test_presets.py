"""Presets: the paper's table, and configurations that are refused before any work starts."""

import json
from typing import Any

import pytest

from sphere_replay.errors import ConfigError
from sphere_replay.instruct.config import HOST_NAMES, InstructConfig
from sphere_replay.instruct.presets import names, provenance, resolve
from sphere_replay.replay import SELECTIONS

PRESETS = ["instruct-t5-large", "instruct-smollm2", "instruct-tiny"]


def test_there_are_three_presets() -> None:
    assert names() == PRESETS


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("select", SELECTIONS)
def test_every_selection_resolves_and_survives_json(preset: str, select: str) -> None:
    for host in HOST_NAMES:
        if host == "none" and select != "uniform":
            with pytest.raises(ConfigError, match="none replays nothing"):
                resolve(preset, host, select)
            continue
        config = resolve(preset, host, select, order=1, seed=3)
        assert (config.host, config.select, config.order, config.seed) == (host, select, "1", 3)
        assert config.pair == "order 1, seed 3"
        assert InstructConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_the_settings_of_t5_large_are_the_papers() -> None:
    config = resolve("instruct-t5-large", "er", "sphere")
    assert config.model == "google-t5/t5-large"
    assert (config.corpus, config.cap, len(config.task_names)) == ("classification", 1000, 15)
    assert (config.rank, config.lr, config.virtual_lr) == (8, 1e-3, 1e-2)
    assert (config.batch, config.replay_batch, config.strength) == (16, 4, 1.0)
    assert (config.capacity, config.pool, config.every, config.top) == (300, 512, 4, 16)
    assert (config.eps_s, config.eps_t, config.c_beta, config.alpha) == (0.2, 0.5, 1.0, 0.5)
    assert config.unit_mass
    assert resolve("instruct-t5-large", capacity=3000).capacity == 3000


def test_tiny_reads_the_real_texts_within_other_budgets() -> None:
    ours, real = resolve("instruct-tiny"), resolve("instruct-tiny", corpus="classification")
    assert (ours.corpus, real.corpus) == ("generated", "classification")
    assert (real.capacity, real.cap) != (ours.capacity, ours.cap)
    assert len(real.task_names) == 15


def test_where_values_come_from() -> None:
    paper, tiny = resolve("instruct-t5-large"), resolve("instruct-tiny")
    assert not any(provenance(paper, name) for name in ("cap", "lr", "rank", "capacity", "eps_s"))
    assert "O-LoRA" in provenance(paper, "lora_alpha")
    assert provenance(tiny, "rank") == "chosen here; the paper's is 8"
    assert provenance(tiny, "capacity") == "the paper's are 300 and 3000"
    assert provenance(tiny, "max_source") == "chosen here"
    assert not provenance(resolve("instruct-t5-large", capacity=3000), "capacity")
    assert not provenance(tiny, "seed")


def test_names_of_runs_are_readable_and_tell_runs_apart() -> None:
    config = resolve("instruct-tiny", "er", "mir", order="2", seed=4)
    assert config.run_name == "instruct-tiny-generated-er-mir-memory64-order2-seed4"
    assert "t5-large" in resolve("instruct-t5-large").run_name
    assert "/" not in resolve("instruct-tiny", model="some/folder/").run_name
    assert "tasks2" in resolve("instruct-tiny", order="topic,order").run_name


def test_an_order_can_be_spelled_out() -> None:
    assert resolve("instruct-tiny", order="order,topic").task_names == ("order", "topic")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "instruct-tinny"}, r"unknown preset 'instruct-tinny'.*instruct-tiny"),
        ({"corpus": "clasification"}, r"unknown corpus 'clasification'.*classification"),
        ({"host": "err"}, r"unknown host 'err'.*er"),
        ({"select": "spehre"}, r"unknown selection 'spehre'.*sphere"),
        ({"evaluate_on": "dev"}, r"unknown evaluate_on 'dev'"),
        ({"capacty": 5}, r"unknown setting 'capacty'.*capacity"),
        ({"order": "topic,ordr"}, r"unknown task of corpus generated 'ordr'.*order"),
        ({"order": "mnli,cb"}, r"unknown task of corpus generated 'mnli'"),
        ({"order": ""}, r"unknown task of corpus generated ''"),
        ({"order": "topic,topic"}, "names a task twice"),
        ({"order": "3"}, r"has the orders 0 to 2, got 3"),
        ({"model": ""}, "model takes tiny"),
        (
            {"capacity": 3},
            r"4 distinct memories .* capacity=3: raise capacity",
        ),
        ({"noise": 1.5}, r"noise must lie in \[0, 1\], got 1.5"),
        ({"pool": 3}, r"4 distinct memories cannot be drawn from pool=3"),
        ({"select": "mir-top", "top": 2}, r"4 distinct memories cannot be drawn from top=2"),
        ({"lr": 0}, "lr must be positive, got 0"),
        ({"lr": float("nan")}, "lr must be finite, got nan"),
        ({"cap": 0}, "cap must be positive"),
        ({"cap": 1.5}, "cap takes int, got 1.5"),
        ({"rank": -1}, "rank must be at least 0, got -1"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"answer_tokens": 2}, "answer_tokens is 1 or left out"),
        ({"trained_blocks": 1}, "set answer_tokens=1"),
        ({"trained_blocks": 0, "answer_tokens": 1}, "trained_blocks must be at least 1, got 0"),
        ({"alpha": 1.5}, r"alpha must lie in \[0, 1\], got 1.5"),
        ({"unit_mass": 1}, "unit_mass takes bool, got 1"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(**{"preset": "instruct-tiny"} | arguments)


def test_what_only_one_selection_reads_limits_no_other() -> None:
    assert resolve("instruct-tiny", select="sphere", top=2).select == "sphere"


def test_what_is_not_asked_for_is_no_part_of_the_identity() -> None:
    """Runs from before these settings keep their identity."""
    settings = {"texts", "instructions", "answer_tokens", "trained_blocks", "window", "tail"}
    assert not settings & resolve("instruct-tiny").to_dict().keys()
    assert settings <= resolve("instruct-smollm2").to_dict().keys()


def test_equal_numbers_are_one_configuration() -> None:
    one, other = resolve("instruct-tiny", strength=1), resolve("instruct-tiny", strength=1.0)
    assert json.dumps(one.to_dict()) == json.dumps(other.to_dict())


def test_a_saved_configuration_with_a_strange_field_is_refused() -> None:
    saved = resolve("instruct-tiny").to_dict() | {"augment": True}
    with pytest.raises(ConfigError, match="not part of the instruct configuration: augment"):
        InstructConfig.from_dict(saved)
