"""The benchmark of economy: whole tasks in turns, and differences of saved runs by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import economy
from benchmarks.digits import random_images
from benchmarks.economy import (
    BENCHMARK,
    ECONOMICAL,
    ER,
    FORWARDS,
    MLP,
    PUBLISHED,
    RESNET,
    Plan,
    Saved,
    accuracies,
    settings_of,
)
from sphere_replay.vision.job import VisionJob


def save(path: Path, **tails: list[float]) -> None:
    runs = [
        {
            "method": method.replace("_", " + "),
            "column": "40%",
            "seed": 1500 + number,
            "metrics": {"tail_accuracy": tail},
            "costs": {"scored_per_example": 2.0 * number},
        }
        for method, values in tails.items()
        for number, tail in enumerate(values)
    ]
    saved = {"table": "t", "command": "c", "protocol": {}, "runs": runs}
    path.write_text(json.dumps(saved))


def test_accuracies_are_paired_by_seed(tmp_path: Path) -> None:
    save(tmp_path / "runs.json", ER=[0.4, 0.5, 0.6], ER_calibrated=[0.5, 0.7, 0.9])
    save(tmp_path / "runs-economical.json", ER_calibrated=[0.49, 0.7])
    cells = accuracies(tmp_path, Saved("runs"))
    assert cells[PUBLISHED]["gain"]["mean"] == pytest.approx(20)
    assert cells[PUBLISHED]["gain"]["pairs"] == 3
    assert cells[PUBLISHED]["scored"] == 2.0
    assert cells[ECONOMICAL]["gain"]["mean"] == pytest.approx(14.5)
    assert cells[ECONOMICAL]["kept"]["mean"] == pytest.approx(-0.5)
    assert "kept" not in cells[PUBLISHED]
    low, high = (cells[ECONOMICAL]["kept"][side] for side in ("low", "high"))
    assert low < -0.5 < high
    show = BENCHMARK.columns["over published"]
    assert show(cells[ECONOMICAL]) == f"-0.5 [{low:+.1f}, {high:+.1f}]"
    assert show(cells[PUBLISHED]) == ""


def test_without_files_there_are_no_accuracies_and_one_seed_has_no_interval(
    tmp_path: Path,
) -> None:
    assert accuracies(tmp_path, Saved("runs")) == {}
    save(tmp_path / "runs.json", ER=[0.4], ER_calibrated=[0.5])
    cells = accuracies(tmp_path, Saved("runs"))
    assert list(cells) == [ER, PUBLISHED]
    assert BENCHMARK.columns["accuracy over ER"](cells[PUBLISHED]) == "+10.0"


def test_contestants_differ_in_selection_and_schedule_alone() -> None:
    assert settings_of(ER, "sphere") == {"select": "uniform"}
    assert settings_of(PUBLISHED, "sphere") == {"select": "sphere", "schedule": "published"}
    assert settings_of(ECONOMICAL, "mir") == {"select": "mir", "schedule": "economical"}
    assert settings_of(FORWARDS, "mir") == settings_of(ECONOMICAL, "mir") | {"reuse": 0}


def test_a_turn_is_a_task_from_its_start_with_a_full_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: dict[str, list[int]] = {}
    held: list[int] = []
    advance = VisionJob.advance

    def listen(job: VisionJob, step: int) -> Any:
        key = f"{job.config.select} {job.config.schedule} {job.config.reuse}"
        steps.setdefault(key, []).append(step)
        held.append(len(job._host.memory))
        return advance(job, step)

    monkeypatch.setattr(VisionJob, "advance", listen)
    plan = Plan(capacity=128, results=tmp_path, least_rounds=1, least_seconds=0.0)
    cells = economy._vision_cells(plan, MLP, "mnist", random_images(1600))
    counted = steps["uniform published 32"]
    assert len(steps) == 4
    assert all(each == counted for each in steps.values())
    first = counted[3]  # two batches fill the memory, and one more
    task = list(range(first, first + len(counted[3:])))
    assert counted == [0, 1, 2, *task]
    assert len(task) >= 4
    assert min(held[-len(task) :]) == 128
    assert [(cell["figure"], cell["setting"], cell["against"]) for cell in cells] == [
        (name, MLP, ER) for name in (ER, PUBLISHED, ECONOMICAL, FORWARDS)
    ]
    assert cells[0]["ratio"] == 1


def test_targets_are_about_the_economical_schedule() -> None:
    cells = [
        {"setting": RESNET, "figure": PUBLISHED, "ratio": 2.0},
        {"setting": RESNET, "figure": ECONOMICAL, "ratio": 1.2, "kept": {"mean": -0.6}},
        {"setting": MLP, "figure": ECONOMICAL, "ratio": 1.6},
    ]
    judged = [target.judged(cells) for target in BENCHMARK.targets]
    assert [target.met for target in judged] == [True, False, None, False, None]
