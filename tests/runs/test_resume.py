"""A process killed with SIGKILL again and again ends with the bits of one that ran through."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sphere_replay.runs.checkpoint import load_latest, save
from sphere_replay.runs.folder import FolderBusyError, RunFolder
from sphere_replay.runs.log import RunLog, read_log

STEPS = 60


def run(path: Path, *, wait_at: int | None = None) -> None:
    """A small run with a parameter, momentum and random data; a checkpoint every third step."""
    with RunFolder(path).claim({"steps": STEPS}) as folder:
        generator = torch.Generator().manual_seed(1)
        weight = torch.zeros(50)
        momentum = {0: torch.zeros(50)}
        step, lines, losses = 0, 0, [0.0]
        if latest := load_latest(path):
            tree = latest.tree
            generator.set_state(tree["generator"])
            weight, momentum = tree["weight"], tree["momentum"]
            step, lines, losses = tree["step"], tree["lines"], tree["losses"]
        with RunLog(folder.log_path, position=lines) as log:
            while step < STEPS:
                gradient = weight - torch.randn(50, generator=generator)
                momentum[0] = 0.9 * momentum[0] + gradient
                weight = weight - 0.1 * momentum[0]
                step += 1
                losses.append(float(gradient.square().mean()))
                log.append({"step": step, "loss": losses[-1]})
                if step % 3 == 0:
                    tree = {
                        "generator": generator.get_state(),
                        "weight": weight,
                        "momentum": momentum,
                        "step": step,
                        "losses": losses,
                        "lines": log.sync(),
                    }
                    save(path, tree)
                if step == wait_at:
                    print("waiting", flush=True)
                    sys.stdin.read()
        folder.write_results({"weight": weight.tolist(), "losses": losses})


def test_killed_runs_end_like_uninterrupted_ones(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole)
    for step in (4, 31):  # one step after a checkpoint: that step and its line are lost
        command = [sys.executable, __file__, str(killed), str(step)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n"
            with (
                pytest.raises(FolderBusyError, match=f"process {process.pid} on"),
                RunFolder(killed).claim({"steps": STEPS}),
            ):
                pytest.fail("two processes hold the folder")
            process.kill()
            assert process.wait() == -signal.SIGKILL
        assert not RunFolder(killed).finished
    run(killed)
    assert (killed / "results.json").read_bytes() == (whole / "results.json").read_bytes()
    log = read_log(killed / "log.jsonl", times=False)
    assert log == read_log(whole / "log.jsonl", times=False)
    assert [line["step"] for line in log] == list(range(1, STEPS + 1))


if __name__ == "__main__":
    run(Path(sys.argv[1]), wait_at=int(sys.argv[2]))
