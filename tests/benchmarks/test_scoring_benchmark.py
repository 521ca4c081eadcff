"""The ways to run the memory through a network agree; how fast each is, is not tested."""

import itertools

import pytest
import torch

from benchmarks import harness, scoring
from benchmarks.rendering import Progress
from benchmarks.scoring import BENCHMARK, IN_USE, Plan, ways
from benchmarks.timing import Timing
from sphere_replay.randomness import generator_for


def test_all_ways_give_the_same_logits() -> None:
    images = torch.randn(70, 3, 32, 32, generator=generator_for(1, "images"))
    first, *others = (way() for way in ways(images, width=2).values())
    assert len(others) == 5
    assert first.requires_grad
    for logits in others:
        assert not logits.requires_grad
        torch.testing.assert_close(logits, first.detach(), rtol=1e-4, atol=1e-5)


def test_gains_are_over_the_row_above_and_over_the_first() -> None:
    plan = Plan(images=6, width=2, least_rounds=1, least_seconds=0.0)
    report = harness.measure("scoring", BENCHMARK, plan, Progress())
    seconds = [cell["seconds"] for cell in report.cells]
    assert len(seconds) == 6
    gains = [cell["gain"] for cell in report.cells]
    assert gains == [1.0, *(a / b for a, b in itertools.pairwise(seconds))]
    assert [cell["in_all"] for cell in report.cells] == [seconds[0] / taken for taken in seconds]
    assert report.command[4:] == ("--images", "6", "--width", "2")
    assert report.setting == "6 images, width 2."


@pytest.mark.parametrize(("taken", "met"), [(1.05, True), (1.2, False)])
def test_the_target_is_that_scoring_uses_a_fast_way(
    taken: float, met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = Timing({"one chunk": 1.0, IN_USE: taken, "slow": 9.0}, 1)
    monkeypatch.setattr(Plan, "race", lambda plan, contestants: times)
    (target,) = BENCHMARK.targets
    judged = target.judged(scoring.measure(Plan(images=2, width=1), Progress()))
    assert (judged.measured, judged.met) == (taken, met)
    assert target.judged([]).met is None
