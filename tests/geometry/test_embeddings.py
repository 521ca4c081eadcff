"""Unit rows as seen from an origin, in float32: near it, far from it, and of any length."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sphere_replay.geometry.embeddings import UnitRows, center_embeddings, lengths
from sphere_replay.geometry.sources import fast_squared, sharp_squared
from tensors import random

FLOAT32 = torch.finfo(torch.float32).eps


def features(lengths: float, *, together: float = 0.0) -> Tensor:
    rows = random(300, 40, seed=1)
    rows[:, 0] += together
    return rows * lengths


@pytest.mark.parametrize("together", [0.0, 30.0])
@pytest.mark.parametrize("lengths", [1e-30, 1.0, 1e30])
def test_rows_are_rounded_once(lengths: float, together: float) -> None:
    rows = features(lengths, together=together)
    unit = normalize(rows.double() / lengths, dim=1)
    origin = unit.mean(dim=0)
    seen = UnitRows(rows).seen_from(origin)
    largest = (unit - origin).abs().amax()
    assert seen.dtype == torch.float32
    assert float((seen - (unit - origin)).abs().max()) < 2 * FLOAT32 * float(largest)


def test_a_row_without_a_direction_is_at_the_origin_of_the_sphere() -> None:
    rows = features(1.0)
    rows[7] = 0
    origin = torch.full((40,), 0.01, dtype=torch.float64)
    seen = UnitRows(rows).seen_from(origin)
    assert torch.equal(seen[7], -origin.float())
    torch.testing.assert_close(seen[8].double(), normalize(rows[8].double(), dim=0) - origin)


def test_the_same_row_twice_is_the_same_point() -> None:
    rows = features(1.0)[torch.arange(900) % 300]
    seen = UnitRows(rows).seen_from(torch.zeros(40, dtype=torch.float64))
    assert torch.equal(seen[:300], seen[300:600])
    assert torch.equal(seen[:300], seen[600:])


@pytest.mark.parametrize("dim", [3, 127, 128, 200])
@pytest.mark.parametrize("size", [1, 128, 129, 300])
def test_mirrored_products_are_products(size: int, dim: int) -> None:
    points = normalize(random(size, dim, seed=2, dtype=torch.float64), dim=1)
    squared = sharp_squared(points, points, torch.float64, same=True).fill_diagonal_(0)
    torch.testing.assert_close(squared, fast_squared(points, points).fill_diagonal_(0))


@pytest.mark.parametrize("transposed", [False, True])
def test_long_rows_have_lengths_good_to_a_rounding(*, transposed: bool) -> None:
    rows = random(20, 30_000, seed=3).abs()
    rows = rows.T.contiguous().T if transposed else rows
    found = lengths(rows).double()
    torch.testing.assert_close(
        found, rows.double().norm(dim=1, keepdim=True), rtol=2 * FLOAT32, atol=0
    )


def test_features_that_require_gradients_leave_nothing_behind() -> None:
    rows = features(1.0)
    expected = center_embeddings(rows)
    centered = center_embeddings(rows.clone().requires_grad_())
    assert not centered.requires_grad
    assert torch.equal(centered, expected)
    assert not center_embeddings(rows).requires_grad
