"""A vision run that is stopped and damaged in every way ends as one that never was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs.accidents import AccidentError, Event, accident, at, interrupt, nothing
from sphere_replay.errors import Interrupted
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.job import SteppedJob
from sphere_replay.runs.log import read_log
from sphere_replay.runs.runner import run_job
from sphere_replay.vision import load_images
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve


class Fragile(VisionJob):
    """A vision run to which something happens."""

    event: Event = staticmethod(nothing)

    def advance(self, step: int) -> dict[str, Any] | None:
        self.event(step)
        return super().advance(step)


@pytest.mark.parametrize(("host", "select"), [("er", "sphere"), ("der-pp", "mir")])
def test_a_vision_run_survives_accidents_interruptions_and_damage(
    host: str, select: str, tmp_path: Path
) -> None:
    config = resolve("digits", host, select, limit=200, capacity=50, pool=30, evaluate_every=9)
    data = load_images("digits")
    accidents, interruptions = at({8, 16}, accident), at({12}, interrupt)

    def event(step: int) -> None:
        interruptions(step)
        accidents(step)

    def make() -> Fragile:
        job = Fragile(config, data)
        job.event = event
        return job

    def run(name: str, make_job: Callable[[], SteppedJob]) -> None:
        folder = RunFolder(tmp_path / name)
        run_job(make_job, folder, config.to_dict(), seed=config.seed, checkpoint_every=3)

    run("whole", lambda: VisionJob(config, data))
    with pytest.raises(AccidentError):
        run("troubled", make)
    with pytest.raises(Interrupted):
        run("troubled", make)
    with pytest.raises(AccidentError):
        run("troubled", make)
    with (tmp_path / "troubled" / "checkpoint.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    run("troubled", make)
    results = [(tmp_path / name / "results.json").read_bytes() for name in ("whole", "troubled")]
    assert results[0] == results[1]
    logs = [
        [line for line in read_log(tmp_path / name / "log.jsonl", times=False) if "loss" in line]
        for name in ("whole", "troubled")
    ]
    assert logs[0] == logs[1]
    assert len(logs[0]) >= 5
