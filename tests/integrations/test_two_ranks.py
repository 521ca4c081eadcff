"""Two processes end with the same bits, and with what one process would have got."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from integrations import two_ranks
from integrations.training import same_weights, trainer, weights

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    script = str(TESTS / "integrations" / "two_ranks.py")
    launched = subprocess.Popen(
        [sys.executable, *command, script, str(folder)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = launched.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        os.killpg(launched.pid, signal.SIGKILL)  # the workers too
        raise
    assert launched.returncode == 0, errors[-3000:]
    return folder


def part(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    inside = folder / name
    values = json.loads((inside / "values.json").read_text())
    weights, replay = (load_file(inside / f"{kind}.safetensors") for kind in ("weights", "replay"))
    return weights, replay, values


@pytest.mark.parametrize("name", ["whole", "rest"])
def test_the_ranks_are_bit_identical(results: Path, name: str) -> None:
    first, second = part(results, f"{name}-0"), part(results, f"{name}-1")
    assert same_weights(first[0], second[0])
    assert same_weights(first[1], second[1])
    assert first[2]["replay"] == second[2]["replay"]
    for one, other in zip(first[2]["log"], second[2]["log"], strict=True):
        assert {k: one[k] for k in one if k.startswith("replay/")} == {
            k: other[k] for k in other if k.startswith("replay/")
        }


def test_a_resumed_pair_equals_the_uninterrupted_one(results: Path) -> None:
    whole, rest = part(results, "whole-0"), part(results, "rest-0")
    assert same_weights(whole[0], rest[0])
    assert same_weights(whole[1], rest[1])
    assert whole[2]["replay"] == rest[2]["replay"]


def test_two_processes_do_what_one_does(results: Path, tmp_path: Path) -> None:
    options = two_ranks.OPTIONS | {"per_device_train_batch_size": 4, "save_strategy": "no"}
    del options["ddp_backend"]
    single = trainer("causal", tmp_path, replay=two_ranks.REPLAY, **options)
    single.train()
    both, replay, values = part(results, "whole-0")
    mine = single.replay.language.state_dict()
    # Bit for bit: what is remembered, who was a candidate, and where the random streams stand.
    rounded = {"replay.weights"}
    assert mine["tensors"].keys() == replay.keys()
    for name in replay.keys() - rounded:
        assert torch.equal(mine["tensors"][name], replay[name]), name
    # Up to rounding: sums over two processes are sums in another order.
    for name, value in weights(single).items():
        torch.testing.assert_close(both[name], value, rtol=1e-3, atol=1e-5)
    assert values["replay"]["mass"] == pytest.approx(mine["values"]["mass"], abs=0.01)
    logged = [entry for entry in single.state.log_history if "replay/loss" in entry]
    for one, other in zip(logged, values["log"][1:], strict=True):
        assert one["replay/loss"] == pytest.approx(other["replay/loss"], rel=1e-3)
