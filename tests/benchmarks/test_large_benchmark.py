"""The benchmark of large memories: its inputs, cells and targets; how fast things are, is not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import harness, timing
from benchmarks.large import BENCHMARK, inputs
from benchmarks.rendering import Progress


def test_classes_have_neighbours_and_normal_features_have_none() -> None:
    shares = []
    for kind in ("classes", "normal"):
        increments, features, labels = inputs(kind, 3000)
        unit = torch.nn.functional.normalize(features, dim=1)
        squared = torch.cdist(unit, unit).square()
        shares.append(float(squared.kthvalue(6).values.median() / squared.median()))
        assert 0 < float((increments > 0).double().mean()) < 1
        assert set(labels.tolist()) == {0, 1, 2}
    assert shares[0] < 0.25
    assert shares[1] > 0.5


def test_cells_say_how_far_and_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PROCESS", Path("/nowhere"))
    plan = replace(
        BENCHMARK.quick, sizes=(1000, 1500), trials=1, trial_size=1000, rows=2000, least_seconds=0.0
    )
    report = harness.measure("large", replace(BENCHMARK, threads=1), plan, Progress())
    by_name = {(cell["figure"], cell["m"]): cell for cell in report.cells}
    assert "growth" not in by_name["allocate, classes", 1000]
    assert "growth" in by_name["allocate, classes", 1500]
    assert by_name["allocate, normal", 1000]["certified"] >= 0
    assert by_name["allocate, classes, calibrated", 1500]["how"] == "sparse"
    for figure in ("nearest others", "nearest others, again"):
        lists = by_name[f"{figure}, classes, calibrated", 1500]
        assert lists["how"] == "256 each"
        assert 0 < lists["certified"] < 100
    trial = by_name["certificate, classes", 1000]
    assert (trial["trials"], trial["inside"]) == (1, 100.0)
    assert trial["true"] <= trial["certified"]
    assert by_name["memory: changes", 2000]["batch"] > 0
    assert {target.met for target in report.targets[:2]} == {None}  # no million was measured
