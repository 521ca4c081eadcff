"""Sharded by FSDP2 on two processes: what the unsharded trainers do, and the same on both."""

from pathlib import Path

import pytest

from integrations.fsdp_ranks import KINDS
from integrations.pairs import (
    check_close,
    check_death_was_noticed,
    check_equal,
    check_logs_agree,
    ended,
    launch,
    part,
)

DYING = ("causal", "grpo")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = Path(__file__).with_name("fsdp_ranks.py")
    return launch(script, tmp_path_factory.mktemp("sharded"), "train", *DYING)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sharded_training_is_the_unsharded_one(results: Path, kind: str) -> None:
    check_close(part(results, f"{kind}-plain-0"), part(results, f"{kind}-sharded-0"))


@pytest.mark.parametrize("name", [*(f"{kind}-sharded" for kind in KINDS), "sft-mixed"])
def test_weights_memory_and_draws_agree_on_both(results: Path, name: str) -> None:
    first, second = part(results, f"{name}-0"), part(results, f"{name}-1")
    check_equal(first, second)
    check_logs_agree(first, second)
    assert all(bool(value.isfinite().all()) for value in first[0].values())


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_from_a_sharded_checkpoint_it_ends_with_the_same_bits(
    results: Path, kind: str
) -> None:
    check_equal(part(results, f"{kind}-sharded-0"), part(results, f"{kind}-rest-0"))


def test_mixed_precision_and_checkpointing_are_near(results: Path) -> None:
    plain, mixed = part(results, "sft-sharded-0"), part(results, "sft-mixed-0")
    for one, other in zip(plain[2], mixed[2], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-2)


@pytest.mark.parametrize("kind", DYING)
def test_a_process_that_dies_does_not_leave_the_other_waiting(results: Path, kind: str) -> None:
    check_death_was_noticed(*ended(results, kind))
