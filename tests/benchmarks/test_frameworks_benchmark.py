"""The comparison in frameworks: its arithmetic, its stream, and that the pages show its results."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.frameworks import mammoth
from benchmarks.frameworks.__main__ import FRAMEWORKS
from benchmarks.frameworks.comparison import (
    BATCH,
    OWN,
    TAIL,
    Stream,
    network,
    stream_of,
    summary,
    table,
)

ROOT = Path(__file__).parents[2]


def row(method: str, seed: int, accuracy: float, milliseconds: float) -> dict[str, Any]:
    found = {"method": method, "seed": seed, "noise": 0.4}
    return {**found, "accuracy": accuracy, "milliseconds": milliseconds}


def test_gains_and_times_are_those_of_pairs() -> None:
    rows = [row(OWN, seed, 50.0 + seed, 2.0 + seed) for seed in range(3)]
    rows += [row("sphere", seed, 51.0 + 2 * seed, 4.0 + 3 * seed) for seed in range(3)]
    own, sphere = summary(rows)
    assert own.gain is None
    assert own.ratio == 1.0
    assert sphere.accuracy == 53.0
    assert sphere.gain is not None
    assert sphere.gain.mean == 2.0  # of 1, 2 and 3
    assert sphere.ratio == statistics.median([4 / 2, 7 / 3, 10 / 4])
    assert "| 40% | sphere | 53.0% | +2.0 [-0.5, +4.5] | 2.33 |" in table([own, sphere])


def test_tasks_are_whole_batches_of_two_labels_each() -> None:
    stream = stream_of(0.4, 0)
    for task, batches in enumerate(stream.tasks):
        assert {len(y) for _, y in batches} == {BATCH}
        assert set(torch.cat([y for _, y in batches]).tolist()) == {2 * task, 2 * task + 1}
    assert stream.updates == sum(len(batches) for batches in stream.tasks)


@pytest.mark.parametrize("method", [OWN, "uniform", "sphere-calibrated"])
def test_both_sides_learn_the_beginning_of_the_stream(method: str) -> None:
    whole = stream_of(0.0, 0)
    first = whole.test_y < 4
    brief = Stream(whole.tasks[:2], whole.test_x[first], whole.test_y[first])
    found = mammoth.train(method, brief, network(0), 0)
    assert found["accuracy"] > 60  # without replay no more than half
    assert found["milliseconds"] > 0
    assert brief.updates > TAIL


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_page_shows_the_committed_results(name: str) -> None:
    results = json.loads((ROOT / "results" / "frameworks" / f"{name}.json").read_text("utf-8"))
    page = (ROOT / "docs" / f"{name.partition('_')[0]}.md").read_text("utf-8")
    assert table(summary(results["rows"])) in page
    assert results["command"] in page
