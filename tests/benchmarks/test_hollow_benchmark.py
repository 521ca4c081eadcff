"""The benchmark of hollow rewards: AUC is what it says, and nothing predicts nothing."""

import itertools
from dataclasses import replace

import pytest
import torch

from benchmarks import harness
from benchmarks.hollow import BENCHMARK, auc
from coding.brief import BRIEF, home
from told import Told


def test_auc_is_the_share_of_pairs_in_order() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(5, (40,), generator=generator)
    positive = torch.rand(40, generator=generator) < 0.3
    pairs = list(itertools.product(values[positive].tolist(), values[~positive].tolist()))
    expected = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert auc(values.float(), positive) == pytest.approx(expected)
    assert auc(values.float(), torch.zeros(40, dtype=torch.bool)) == 0.5


def test_every_signal_has_an_interval_and_nothing_is_chance() -> None:
    progress = Told()
    plan = replace(BENCHMARK.quick, generations=2, warm_up=BRIEF["warm_up"], out=home())
    report = harness.measure("hollow", BENCHMARK, plan, progress, quick=True)
    cells = {cell["figure"]: cell for cell in report.cells}
    assert cells["nothing"]["auc"]["mean"] == cells["nothing"]["within"]["mean"] == 0.5
    for cell in cells.values():
        low, high = cell["auc"]["interval"]
        assert low <= cell["auc"]["mean"] <= high
    assert [told[2] for told in progress.told][:2] == ["seed 0", "seed 1"]
