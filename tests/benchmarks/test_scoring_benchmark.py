"""The ways to run the memory through a network agree; how fast each is, is not tested."""

import argparse
import itertools
import json

import pytest
import torch

from benchmarks import scoring
from benchmarks.scoring import IN_USE, Cell, measure, targets, ways
from sphere_replay.randomness import generator_for


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    scoring.add_arguments(parser)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args(words)


def test_all_ways_give_the_same_logits() -> None:
    images = torch.randn(70, 3, 32, 32, generator=generator_for(1, "images"))
    first, *others = (way() for way in ways(images, width=2).values())
    assert len(others) == 5
    assert first.requires_grad
    for logits in others:
        assert not logits.requires_grad
        torch.testing.assert_close(logits, first.detach(), rtol=1e-4, atol=1e-5)


def test_gains_are_over_the_row_above_and_over_the_first() -> None:
    report = measure(arguments("--quick", "--images", "6", "--width", "2"), lambda *_: None)
    seconds = [float(str(cell["seconds"])) for cell in report.cells]
    assert len(seconds) == 6
    gains = [float(str(cell["gain"])) for cell in report.cells]
    assert gains == [1.0, *(a / b for a, b in itertools.pairwise(seconds))]
    assert [cell["in_all"] for cell in report.cells] == [seconds[0] / taken for taken in seconds]
    assert report.command[3:] == ("--quick", "--images", "6", "--width", "2")
    assert all(len(row) == len(report.columns) for row in report.rows)
    json.dumps(report.to_json())


@pytest.mark.parametrize(("taken", "met"), [(1.05, True), (1.2, False)])
def test_the_target_is_that_scoring_uses_a_fast_way(taken: float, met: bool) -> None:
    cells = [Cell("one chunk", 1, 1.0, 1, 1), Cell(IN_USE, 1, taken, 1, 1)]
    assert targets(cells)[0].met is met
    assert targets([])[0].met is None
