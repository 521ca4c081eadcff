"""Trainings on two processes: how they are started, what they leave, and what must be true."""

import gc
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
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


def launch(script: Path, folder: Path, *tasks: str) -> Path:
    """Run a script that calls `in_pairs`; the first of its tasks must end well on both processes.

    Without a task the script is run on two processes by torchrun, and gets the folder alone.
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    launched = subprocess.Popen(
        [sys.executable, *([] if tasks else torchrun), str(script), str(folder), *tasks],
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
    if tasks:
        codes, told = ended(folder, tasks[0])
        assert codes == [0, 0], [text[-3000:] for text in told]
    return folder


def in_pairs(work: Callable[[Path, str], None]) -> None:
    """Do each task on two processes that are forked, so that slow imports are made once.

    python SCRIPT FOLDER TASK...
    """
    folder, fork = Path(sys.argv[1]), multiprocessing.get_context("fork")
    gc.freeze()  # see conftest
    for task in sys.argv[2:]:
        os.environ.update(meeting())
        both = [fork.Process(target=_join, args=(work, folder, task, rank)) for rank in (0, 1)]
        for process in both:
            process.start()
        for process in both:
            process.join()
        codes = [process.exitcode for process in both]
        (folder / f"{task}.codes").write_text(json.dumps(codes))


def _join(work: Callable[[Path, str], None], folder: Path, task: str, rank: int) -> None:
    with open(folder / f"{task}-{rank}.said", "wb") as said:
        os.dup2(said.fileno(), sys.stderr.fileno())
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    work(folder, task)


def ended(folder: Path, task: str) -> tuple[list[int], list[str]]:
    """With which codes the processes of a task ended, and what they had to say."""
    codes = json.loads((folder / f"{task}.codes").read_text())
    return codes, [(folder / f"{task}-{rank}.said").read_text() for rank in (0, 1)]


def meeting() -> dict[str, str]:
    """Where two processes find each other, as torchrun would tell them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return address | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def check_death_is_noticed(script: Path, folder: Path, *arguments: str) -> None:
    """The second process ends with 3 in the middle, and the first with an error.

    Without torchrun, which would end the other one itself.
    """
    shared = meeting()
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
    check_death_was_noticed([process.returncode for process in both], errors)


def check_death_was_noticed(codes: list[int], errors: list[str]) -> None:
    """The second process has ended with 3, and the first with an error that names the other."""
    assert codes[1] == 3, errors[1][-3000:]
    assert codes[0] not in (0, None)
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
