"""Jobs with a loop of their own: the runner logs, saves and stops them like any other."""

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sphere_replay.errors import Interrupted
from sphere_replay.runs.checkpoint import load_latest
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.job import AfterStep, LoopingJob
from sphere_replay.runs.log import read_log
from sphere_replay.runs.runner import run_job

STEPS = 12
CONFIG = {"steps": STEPS}


class Loop:
    """A random walk that nobody but itself advances."""

    checkpoint_every = 3

    def __init__(self, during: Callable[[int], None] = lambda step: None) -> None:
        self._generator = torch.Generator().manual_seed(4)
        self._place = torch.zeros(3)
        self._during = during
        self.starts: list[int] = []

    def __len__(self) -> int:
        return STEPS

    @property
    def checksums(self) -> dict[str, str]:
        return {}

    @property
    def status(self) -> str:
        return f"at {self._place[0]:.2f}"

    def run(self, first_step: int, after_step: AfterStep) -> None:
        self.starts.append(first_step)
        for step in range(first_step, STEPS):
            self._place += torch.randn(3, generator=self._generator)
            self._during(step)
            record = {"step": step, "place": self._place.tolist()} if step % 2 == 0 else None
            after_step(record, {"walking": 0.5})

    def results(self) -> dict[str, Any]:
        return {"place": self._place.tolist()}

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place, "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._place = state["place"].clone()
        self._generator.set_state(state["generator"])

    def record(self, folder: Path, moments: int) -> None:
        raise AssertionError("nobody asks a walk for this")


def run(job: Loop, folder: Path, **settings: Any) -> dict[str, Any]:
    return run_job(lambda: job, RunFolder(folder), CONFIG, seed=4, **settings)


def test_a_loop_is_logged_and_reported_step_by_step(tmp_path: Path) -> None:
    reports: list[tuple[int, int, str]] = []
    job = Loop()
    assert isinstance(job, LoopingJob)
    results = run(job, tmp_path, report=lambda *told: reports.append(told))
    assert [done for done, _, _ in reports] == list(range(1, STEPS + 1))
    assert reports[-1][2] == job.status
    log = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in log] == list(range(0, STEPS, 2))
    assert log[0]["time"]["walking"] == 0.5
    assert results["place"] == job.results()["place"]


@pytest.mark.parametrize("at", [0, 2, 3, 7, STEPS - 1])
def test_a_loop_that_breaks_goes_on_from_its_checkpoint(tmp_path: Path, at: int) -> None:
    class AccidentError(Exception):
        pass

    def accident(step: int) -> None:
        if step == at:
            raise AccidentError

    expected = run(Loop(), tmp_path / "whole")
    with pytest.raises(AccidentError):
        run(Loop(accident), tmp_path / "broken")
    job = Loop()
    assert run(job, tmp_path / "broken") == expected
    # Checkpoints at every third step, because the job says so; 500 is the runner's.
    assert job.starts == [at - at % 3]
    logs = [read_log(tmp_path / name / "log.jsonl", times=False) for name in ("whole", "broken")]
    assert logs[0] == logs[1]


def test_the_shorter_of_two_intervals_counts(tmp_path: Path) -> None:
    saved: list[bool] = []

    def look(step: int) -> None:
        saved.append((tmp_path / "checkpoint.json").exists())

    run(Loop(look), tmp_path, checkpoint_every=2)
    assert saved[:3] == [False, False, True]


def test_ctrl_c_reaches_through_a_loop(tmp_path: Path) -> None:
    def press(step: int) -> None:
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    expected = run(Loop(), tmp_path / "whole")
    with pytest.raises(Interrupted, match="stopped after step 5 of 12"):
        run(Loop(press), tmp_path / "stopped")
    latest = load_latest(tmp_path / "stopped")
    assert latest is not None
    job = Loop()
    assert run(job, tmp_path / "stopped") == expected
    assert job.starts == [5]
