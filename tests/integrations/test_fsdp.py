"""Sharded by FSDP2 on two processes: what the unsharded trainers do, and the same on both."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from integrations.fsdp_ranks import KINDS
from integrations.pairs import TESTS, check_equal, check_logs_agree, launch, part

SCRIPT = Path(__file__).with_name("fsdp_ranks.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch(SCRIPT, tmp_path_factory.mktemp("sharded"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sharded_training_is_the_unsharded_one(results: Path, kind: str) -> None:
    plain, sharded = part(results, f"{kind}-plain-0"), part(results, f"{kind}-sharded-0")
    assert plain[0].keys() == sharded[0].keys()
    for name, value in plain[0].items():
        torch.testing.assert_close(sharded[0][name], value, rtol=1e-4, atol=1e-6)
    for one, other in zip(plain[2], sharded[2], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4, abs=1e-6)
        for name in one.keys() & {"replay/ess", "replay/loss", "replay/increment_p50"}:
            assert one[name] == pytest.approx(other[name], rel=1e-2, abs=1e-5)


@pytest.mark.parametrize("name", [*(f"{kind}-sharded" for kind in KINDS), "sft-mixed"])
def test_weights_memory_and_draws_agree_on_both(results: Path, name: str) -> None:
    first, second = part(results, f"{name}-0"), part(results, f"{name}-1")
    check_equal(first, second)
    check_logs_agree(first, second)
    assert all(bool(value.isfinite().all()) for value in first[0].values())


def test_resumed_from_a_sharded_checkpoint_it_ends_with_the_same_bits(results: Path) -> None:
    check_equal(part(results, "causal-sharded-0"), part(results, "causal-rest-0"))


def test_a_process_that_dies_does_not_leave_the_other_waiting(tmp_path: Path) -> None:
    """Without torchrun, which would end the other one itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    both = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path), "die"],
            env={**shared, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        errors = [process.communicate(timeout=600)[1] for process in both]
    finally:
        for process in both:
            process.kill()
    assert both[1].returncode == 3, errors[1][-3000:]
    assert both[0].returncode not in (0, None)
    assert "Connection closed by peer" in errors[0] or "RuntimeError" in errors[0]
