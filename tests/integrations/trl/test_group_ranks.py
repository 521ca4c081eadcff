"""GRPO with replay on two processes: the same bits on both, and the gradient one would have."""

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

from integrations.training import same_weights
from integrations.trl.grpo import surrogate
from language import tiny
from sphere_replay.memory.state import without_prefix

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    script = str(TESTS / "integrations" / "trl" / "ranks.py")
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


def test_gradients_are_those_of_all_groups_together(results: Path) -> None:
    model: Any = tiny.qwen2()
    replaying = set()
    for update in range(6):
        ranks = [load_file(results / f"whole-{rank}" / f"{update}.safetensors") for rank in (0, 1)]
        model.load_state_dict(without_prefix(ranks[0], "weights."))
        parts, counts = [], 0
        for rank, tensors in enumerate(ranks):
            for micro in (0, 1):  # two micro-batches on two processes
                parts.append(surrogate(model, without_prefix(tensors, f"stream.{micro}.")) / 4)
            for place in range(5):
                group = without_prefix(tensors, f"replay.{place}.")
                if group:
                    count = int(group.pop("count"))
                    parts.append(surrogate(model, group) * count / 3)
                    counts += count
                    replaying.add(rank)
        assert counts in (0, 3)
        model.zero_grad()
        torch.autograd.backward(torch.stack(parts).sum())
        for name, parameter in model.named_parameters():
            for tensors in ranks:
                seen = tensors[f"gradient.{name}"]
                torch.testing.assert_close(seen, parameter.grad, rtol=1e-3, atol=1e-6)
    assert replaying == {0, 1}
