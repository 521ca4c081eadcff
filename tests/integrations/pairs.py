"""Trainings on two processes: how they are started, what they leave, and what must be true."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from integrations.training import history, same_weights, weights
from sphere_replay.storage.saved import load_tree, save_tree
from states import spelled

TESTS = Path(__file__).parents[1]
Part = tuple[dict[str, Tensor], dict[str, Any], list[dict[str, Any]]]
"""Weights, state of replay, and the log."""


def launch(script: Path, folder: Path) -> Path:
    """Run a script on two processes by torchrun; it gets the folder to write to."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    launched = subprocess.Popen(
        [sys.executable, *command, str(script), str(folder)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = launched.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(launched.pid, signal.SIGKILL)  # the workers too
        raise
    assert launched.returncode == 0, errors[-3000:]
    return folder


def check_death_is_noticed(script: Path, folder: Path, *arguments: str) -> None:
    """The second process ends with 3 in the middle, and the first with an error.

    Without torchrun, which would end the other one itself.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    both = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), *arguments],
            env=environment(**shared, RANK=rank, LOCAL_RANK=rank),
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


def environment(**more: str) -> dict[str, str]:
    """That of a process which imports these tests."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), **more}


def write(training: Any, folder: Path) -> None:
    """Weights, replay and log of this process."""
    folder.mkdir(parents=True)
    save_file(weights(training), folder / "weights.safetensors")
    log = [entry for entry in history(training) if "loss" in entry]
    save_tree(folder, "replay", {"state": training.replay.state_dict(), "log": log})


def leave() -> None:
    """End a process that has trained.

    Gloo's worker threads may need the interpreter lock to let go of their last tensors, which the
    main thread holds while it waits for them: a group that is destroyed in order can hang.
    """
    torch.distributed.barrier()
    os._exit(0)


def part(folder: Path, name: str) -> Part:
    """What `write` wrote."""
    _, replay = load_tree(folder / name, "replay")
    return load_file(folder / name / "weights.safetensors"), replay["state"], replay["log"]


def check_equal(one: Part, other: Part) -> None:
    """The same weights and the same replay, bit for bit."""
    assert same_weights(one[0], other[0])
    assert spelled(one[1]) == spelled(other[1])


def check_close(one: Part, other: Part) -> None:
    """The same training within float tolerance."""
    assert one[0].keys() == other[0].keys()
    for name, value in one[0].items():
        torch.testing.assert_close(other[0][name], value, rtol=1e-4, atol=1e-6)
    for first, second in zip(one[2], other[2], strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-4, abs=1e-6)
        for name in first.keys() & {"replay/ess", "replay/loss", "replay/increment_p50"}:
            assert first[name] == pytest.approx(second[name], rel=1e-2, abs=1e-5)


def check_logs_agree(one: Part, other: Part) -> None:
    """Both processes have logged the same of replay."""
    for first, second in zip(one[2], other[2], strict=True):
        assert {k: first[k] for k in first if k.startswith("replay/")} == {
            k: second[k] for k in second if k.startswith("replay/")
        }
