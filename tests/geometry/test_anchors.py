"""Float32 products relative to anchors are as good as float64 ones, where they are used."""

import pytest
import torch

from sphere_replay.geometry import SquaredEuclidean, build_geometry
from sphere_replay.geometry.anchors import AnchoredPoints
from sphere_replay.geometry.embeddings import UnitRows
from sphere_replay.geometry.sources import PointSource
from tensors import random


def clusters(spread: float, count: int = 7, size: int = 600) -> torch.Tensor:
    features = random(count, 24).repeat(size // count + 1, 1)[:size]
    return features + spread * random(size, 24, seed=1)


@pytest.mark.parametrize("spread", [3e-1, 1e-1, 1e-2, 1e-4])
def test_kernels_of_tight_clusters(spread: float) -> None:
    features = clusters(spread)
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    exact = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist").square()
    eps = float(exact.kthvalue(6, dim=1).values.median())
    anchored = AnchoredPoints(UnitRows(features), eps)
    assert anchored.finest_eps <= eps
    everything = slice(0, len(features))
    (found,) = anchored.squared(everything, [everything])
    kernel = torch.exp(-found.double() / eps)
    torch.testing.assert_close(kernel, torch.exp(-exact / eps), rtol=0, atol=1e-5)


def test_scales_below_the_rounding_of_residuals_are_sharpened_further() -> None:
    source = SquaredEuclidean().source(clusters(0.1))
    assert isinstance(source, PointSource)
    assert source._fast is not None
    assert source.sharpen(0.01)
    assert source._anchored is not None
    assert not source.sharpen(0.01)
    assert source.sharpen(1e-9)
    assert source._anchored is None
    assert not source.sharpen(1e-12)


def test_clusters_that_come_in_turn_are_all_seen() -> None:
    """Evenly spaced rows would miss half of ten classes that follow each other."""
    features = clusters(1e-2, count=10, size=2000)
    geometry = build_geometry(features)
    precise = build_geometry(features.double())
    eps = float(precise.neighbor_radius([5]).median())
    assert float(geometry.neighbor_radius([5]).median()) == pytest.approx(eps, rel=1e-5)
    assert geometry._source._anchored is not None  # type: ignore[attr-defined]  # what is tested
    ones = torch.ones(2000, dtype=torch.float64)
    expected = precise.apply_kernel(eps, ones)
    torch.testing.assert_close(geometry.apply_kernel(eps, ones), expected, rtol=1e-5, atol=0)
