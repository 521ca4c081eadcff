"""Clusters, and pairs of near memories as matrices."""

import torch
from torch import Tensor

from sphere_replay.geometry import Distance, Kept, Neighbors, SparseGeometry, SquaredEuclidean
from sphere_replay.geometry.sources import PointSource
from tensors import random, seeded

SIZE = 240


def clusters(size: int = SIZE) -> Tensor:
    belongs = torch.randint(12, (size,), generator=seeded(3))
    return random(12, 16, seed=1)[belongs] + 0.3 * random(size, 16, seed=2)


def sparse(
    features: Tensor,
    count: int | None = None,
    distance: Distance | None = None,
    before: Kept | None = None,
) -> SparseGeometry:
    distance = distance or SquaredEuclidean()
    source = distance.source(features)
    assert isinstance(source, PointSource)
    geometry = SparseGeometry(source, count, before=before)
    geometry.unit = distance.unit(geometry)
    return geometry


def matrix(pairs: Neighbors) -> Tensor:
    """Which memories are near which, bool `[m, m]`; no pair is there twice."""
    size = len(pairs.prints)
    near = torch.zeros(size, size, dtype=torch.bool)
    for i in range(size):
        others = pairs.others[int(pairs.starts[i]) : int(pairs.starts[i + 1])].tolist()
        assert len(set(others)) == len(others)
        near[i, others] = True
    return near


def unit(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features, dim=1)


def whose(pairs: Neighbors) -> Tensor:
    return torch.arange(len(pairs.prints)).repeat_interleave(pairs.starts.diff())
