"""`kill -9` at random moments, the same command again: the results are the same to the last bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sphere_replay.runs.log import read_log

COMMAND = [
    sys.executable,
    "-m",
    "sphere_replay",
    "run",
    "digits",
    "--host=er-ace",
    "--select=sphere",
    "--noise=0.4",
    "--quiet",
    "--checkpoint-every=7",
    "--limit=600",
]


def start(out: Path) -> subprocess.Popen[bytes]:
    with open(messages(out), "wb") as errors:
        return subprocess.Popen(
            [*COMMAND, f"--out={out}"], stdout=subprocess.DEVNULL, stderr=errors
        )


def messages(out: Path) -> Path:
    return out.with_suffix(".err")


def only_folder(out: Path) -> Path:
    (folder,) = out.glob("digits-*")
    return folder


def wait_for_steps(out: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the run has written to its log, so that the kill meets it at work."""
    while process.poll() is None and not list(out.glob("*/log.jsonl")):
        time.sleep(0.01)


def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait() == 0
    moments = random.Random(0)
    kills = 0
    while True:
        process = start(killed)
        wait_for_steps(killed, process)
        if kills < 3:
            time.sleep(moments.uniform(0.0, 0.4))
            process.send_signal(signal.SIGKILL)
        code = process.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL, messages(killed).read_text()
        kills += 1
    assert kills >= 2, "the run was over before it could be killed"
    for name in ("results.json", "config.json"):
        expected = (only_folder(whole) / name).read_bytes()
        assert (only_folder(killed) / name).read_bytes() == expected
    logs = [read_log(only_folder(out) / "log.jsonl", times=False) for out in (whole, killed)]
    assert logs[0] == logs[1]


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    process = start(out)
    wait_for_steps(out, process)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130, "the run was over before it could be interrupted"
    assert "Nothing is lost; to go on: sphere run digits" in messages(out).read_text()
    assert (only_folder(out) / "checkpoint.json").exists()
    assert start(out).wait() == 0
    assert (only_folder(out) / "results.json").exists()


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
