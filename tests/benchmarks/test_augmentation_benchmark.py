"""The benchmark of strong views compares like with like; how fast it is, is not tested."""

import pytest
import torch

from benchmarks import harness
from benchmarks.augmentation import BENCHMARK, Plan, by_pillow, per_image
from benchmarks.rendering import Progress
from sphere_replay.randomness import generator_for
from sphere_replay.vision.strong_views import strong_views


def test_a_report_has_every_way_and_the_ratio_to_the_batched_one() -> None:
    plan = Plan(images=6, size=8, least_rounds=3, least_seconds=0.0)
    report = harness.measure("augmentation", BENCHMARK, plan, Progress())
    assert [cell["figure"] for cell in report.cells] == ["batched", "per image", "Pillow"]
    seconds = [cell["seconds"] for cell in report.cells]
    assert min(seconds) > 0
    ratios = [cell["ratio"] for cell in report.cells]
    assert ratios == [taken / seconds[0] for taken in seconds]
    (target,) = report.targets
    assert (target.required, target.relation, target.measured) == (10, "at least", ratios[1])
    assert report.command[4:] == ("--images", "6", "--size", "8")
    assert [row[1:3] for row in report.table[1]] == [("6", "8 x 8")] * 3


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
