"""`kill -9` at random moments, the same command again: the results are the same to the last bit."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sphere_replay.cli import main
from sphere_replay.runs.log import read_log

COMMAND = [
    "run",
    "digits",
    "--host=er-ace",
    "--select=sphere",
    "--noise=0.4",
    "--quiet",
    "--checkpoint-every=7",
    "--limit=1400",  # fast machines are not done before they are killed
]
FORKS = """
import gc, os, sys
import sphere_replay.cli.commands.run, sphere_replay.vision.job, sklearn.datasets, torch._dynamo
from sphere_replay.cli import main
gc.freeze()
for line in sys.stdin:
    run = os.fork()
    if not run:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(main(sys.argv[1:]))
    print(run, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]), flush=True)
"""
"""The command in a process of its own for every line, after imports that these share."""


@dataclass(frozen=True)
class Runs:
    """Starts the command again and again, one process after the other."""

    forks: subprocess.Popen[str]
    out: Path

    @property
    def messages(self) -> str:
        return self.out.with_suffix(".err").read_text()

    def start(self) -> int:
        """The number of the process."""
        assert self.forks.stdin is not None
        self.forks.stdin.write("\n")
        self.forks.stdin.flush()
        return self._told()

    def meet(self) -> int:
        """Start, and wait until the run has written to its log: it is at work."""
        before = self._logged()
        process = self.start()
        until = time.monotonic() + 60
        while self._logged() in (before, ()):
            assert time.monotonic() < until, self.messages
            time.sleep(0.01)
        return process

    def code(self) -> int:
        """How the last process ended."""
        return self._told()

    def _told(self) -> int:
        assert self.forks.stdout is not None
        return int(self.forks.stdout.readline())

    def _logged(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in self.out.glob("*/log.jsonl"))


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    out = tmp_path / "killed"
    pipe = subprocess.PIPE
    with (
        open(out.with_suffix(".err"), "wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", FORKS, *COMMAND, f"--out={out}"],
            stdin=pipe,
            stdout=pipe,
            stderr=errors,
            text=True,
        ) as forks,
    ):
        yield Runs(forks, out)


def only_folder(out: Path) -> Path:
    (folder,) = out.glob("digits-*")
    return folder


def test_stopped_and_killed_a_run_ends_with_the_same_bits(runs: Runs, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert main([*COMMAND, f"--out={whole}"]) == 0
    os.kill(runs.meet(), signal.SIGINT)
    assert runs.code() == 130, "the run was over before it could be interrupted"
    assert "Nothing is lost; to go on: sphere run digits" in runs.messages
    killed = only_folder(runs.out)
    assert (killed / "checkpoint.json").exists()
    moments = random.Random(0)
    for _ in range(2):
        process = runs.meet()
        time.sleep(moments.uniform(0.0, 0.1))
        os.kill(process, signal.SIGKILL)
        assert runs.code() == -signal.SIGKILL, "the run was over before it could be killed"
        assert not (killed / "results.json").exists()
    runs.start()
    assert runs.code() == 0, runs.messages
    for name in ("results.json", "config.json"):
        assert (killed / name).read_bytes() == (only_folder(whole) / name).read_bytes()
    logs = [read_log(folder / "log.jsonl", times=False) for folder in (killed, only_folder(whole))]
    assert logs[0] == logs[1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_sweep_takes_its_workers_along(tmp_path: Path) -> None:
    words = ["sweep", "digits", "--seeds=50", "--workers=2", "--quiet", f"--out={tmp_path}"]
    sweep = subprocess.Popen([sys.executable, "-m", "sphere_replay", *words])
    try:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("digits-*/log.jsonl")) and time.monotonic() < until:
            time.sleep(0.1)
        workers = [pid for pid in _children(sweep.pid) if b"spawn_main" in _command_line(pid)]
        assert len(workers) == 2
    finally:
        sweep.kill()
        sweep.wait()
    until = time.monotonic() + 20
    while any(b"spawn_main" in _command_line(pid) for pid in workers):
        assert time.monotonic() < until, "workers outlive their sweep"
        time.sleep(0.1)


def _children(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in listed.split()]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
