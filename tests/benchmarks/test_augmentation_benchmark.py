"""The benchmark of strong views compares like with like; how fast it is, is not tested."""

import argparse
import json

import pytest
import torch

from benchmarks import augmentation
from benchmarks.augmentation import Cell, by_pillow, measure, per_image, targets
from sphere_replay.randomness import generator_for
from sphere_replay.vision.strong_views import strong_views


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    augmentation.add_arguments(parser)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args(words)


def test_a_report_has_every_way_and_the_ratio_to_the_batched_one() -> None:
    report = measure(arguments("--quick", "--images", "6", "--size", "8"), lambda *_: None)
    assert [cell["way"] for cell in report.cells] == ["batched", "per image", "Pillow"]
    seconds = [cell["seconds"] for cell in report.cells]
    assert all(isinstance(value, float) and value > 0 for value in seconds)
    ratios = [cell["ratio"] for cell in report.cells]
    assert ratios[0] == 1
    (target,) = report.targets
    assert (target.required, target.relation, target.measured) == (10, "at least", ratios[1])
    assert report.command[3:] == ("--quick", "--images", "6", "--size", "8")
    assert len(report.rows) == 3
    assert all(len(row) == len(report.columns) for row in report.rows)
    json.dumps(report.to_json())


@pytest.mark.parametrize(("ratio", "met"), [(9.9, False), (10.0, True)])
def test_the_target_is_about_the_loop_over_images(ratio: float, met: bool) -> None:
    cells = [Cell("batched", 1, 1, 1, 1.0, 1.0), Cell("per image", 1, 1, 1, ratio, ratio)]
    assert targets(cells)[0].met is met
    assert targets([])[0].met is None


def test_all_ways_make_views_of_the_same_kind() -> None:
    """Of one image many times: means and spreads of pixels agree, though no view does."""
    small = torch.rand(1, 3, 4, 4, generator=generator_for(1, "image"))
    image = torch.nn.functional.interpolate(small, size=16, mode="bilinear")
    stored = (image * 255).to(torch.uint8).expand(400, -1, -1, -1)
    batched = strong_views(stored / 255, generator_for(2, "views"), mirror=True)
    singly = per_image(stored / 255, generator_for(3, "views"))
    rival = by_pillow(stored, generator_for(4, "views"))
    for views in (singly, rival):
        assert views.shape == batched.shape
        assert 0 <= float(views.min()) <= float(views.max()) <= 1 + 1e-6
        assert float(views.mean()) == pytest.approx(float(batched.mean()), abs=0.02)
        assert float(views.std()) == pytest.approx(float(batched.std()), abs=0.03)
