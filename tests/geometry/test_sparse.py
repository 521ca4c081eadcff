"""Kernels of near pairs alone: who is near, what products they give, and what is kept of them."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

import reference
from geometry.nearby import SIZE, clusters, matrix, sparse, unit, whose
from sphere_replay.allocation import Control, Sphere, allocate
from sphere_replay.geometry import (
    Cosine,
    Distance,
    Euclidean,
    Neighbors,
    SquaredEuclidean,
    build_geometry,
)
from sphere_replay.numeric import median, spread
from tensors import random, seeded

DISTANCES: dict[str, Distance] = {
    "squared": SquaredEuclidean(),
    "euclidean": Euclidean(),
    "cosine": Cosine(0.4),
}


def near_by_hand(costs: list[list[float]], count: int) -> Tensor:
    near = torch.zeros(len(costs), len(costs), dtype=torch.bool)
    for i, row in enumerate(costs):
        for j in sorted((j for j in range(len(row)) if j != i), key=row.__getitem__)[:count]:
            near[i, j] = near[j, i] = True
    return near


@pytest.mark.parametrize("name", DISTANCES)
def test_products_are_those_of_plain_loops_over_the_nearest_of_either(name: str) -> None:
    features = clusters(90)
    rows = features.double().tolist()
    costs = {
        "squared": lambda: reference.cost_squared(rows),
        "euclidean": lambda: reference.cost_euclidean(rows),
        "cosine": lambda: reference.cost_cosine(rows, 0.4, False),
    }[name]()
    near, whole = near_by_hand(costs, 7), torch.tensor(costs, dtype=torch.float64)
    geometry = sparse(features, 7, DISTANCES[name])
    assert torch.equal(matrix(geometry.neighbors), near)

    kernel = torch.where(near, torch.exp(-whole / 0.3), 0.0)
    vectors = random(90, 2, seed=4, dtype=torch.float64)
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4)
    others = geometry.apply_kernel(0.3, vectors, others_only=True)
    close(others, kernel @ vectors)
    by_class = geometry.sums_by_class(0.3, torch.arange(90) % 5, 5)
    who, sums = map(torch.cat, zip(*by_class, strict=True))
    member = (torch.arange(90)[:, None] % 5 == torch.arange(5)).double()
    close(sums.double(), (kernel @ member)[who])

    kernel += torch.eye(90)
    close(geometry.apply_kernel(0.3, vectors), kernel @ vectors)
    around, mass = geometry.neighborhood(0.3), kernel.sum(1)
    close(around.mass, mass)
    close(around.effective_size, mass**2 / kernel.square().sum(1))
    close(around.radius, (kernel * whole).sum(1) / mass)
    log_vector = random(90, seed=5, dtype=torch.float64)
    found = geometry.apply_log_kernel(0.3, log_vector)
    # The largest are carried by exact rows, and so reach memories that are not near.
    assert (found >= (kernel @ log_vector.exp()).log() - 1e-3).all()
    exact = torch.logsumexp(-whole / 0.3 + log_vector, dim=1)
    assert (found <= exact + 1e-3).all()


def test_kernels_that_pairs_hold_are_exact_and_others_say_how_much_is_missing() -> None:
    features, ones = clusters(), torch.ones(SIZE)
    geometry, exact = sparse(features, 60), build_geometry(features, kind="exact")
    local = exact.apply_kernel(0.02, ones)
    torch.testing.assert_close(geometry.apply_kernel(0.02, ones), local, rtol=1e-5, atol=0)
    geometry.apply_kernel(2.0, ones)
    narrow, wide = geometry.explained().split("; ")
    assert narrow.startswith("eps 0.02 exact N_eff ")
    assert narrow.endswith("pairs hold 100.00% of the kernel")
    held = float((geometry.apply_kernel(2.0, ones) / exact.apply_kernel(2.0, ones)).mean())
    assert 0.2 < held < 0.9
    assert float(wide.split()[-4].rstrip("%")) == pytest.approx(100 * held, abs=5)


@pytest.mark.parametrize("others_only", [False, True])
def test_a_value_that_dwarfs_all_others_is_seen_from_everywhere(others_only: bool) -> None:
    features = clusters(1500)
    vectors = torch.rand(1500, 2, generator=seeded(5))
    vectors[17, 0] = 1e12
    found = sparse(features, 20).apply_kernel(0.3, vectors, others_only=others_only)[:, 0]
    exact = build_geometry(features, kind="exact")
    expected = exact.apply_kernel(0.3, vectors, others_only=others_only)[:, 0]
    alone = torch.arange(1500) == (17 if others_only else -1)
    torch.testing.assert_close(found[~alone], expected[~alone], rtol=2e-3, atol=0)


def test_products_are_the_same_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    features, vectors = clusters(), random(SIZE, 3, seed=4)
    usual = sparse(features, 9)
    for name in ("sparse._AT_ONCE", "neighbors._AT_ONCE", "neighbors._ROWS", "neighbors._COLUMNS"):
        monkeypatch.setattr(f"sphere_replay.geometry.{name}", 70)
    other = sparse(features, 9)
    assert torch.equal(other.neighbors.starts, usual.neighbors.starts)
    found = other.apply_kernel(0.1, vectors)
    torch.testing.assert_close(found, usual.apply_kernel(0.1, vectors), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_few_memories_are_all_near(size: int) -> None:
    features = random(size, 4)
    ones, exact = torch.ones(size), build_geometry(features, kind="exact")
    found = sparse(features).apply_kernel(0.5, ones)
    torch.testing.assert_close(found, exact.apply_kernel(0.5, ones))


def test_points_that_nearly_coincide_have_their_distances_to_all_digits() -> None:
    features = clusters(60).double().repeat_interleave(4, dim=0)
    features += 1e-4 * random(240, 16, seed=4, dtype=torch.float64)
    pairs = sparse(features.float(), 3).neighbors
    points = unit(features.float()).double()
    apart = (points[pairs.others] - points[whose(pairs)]).square().sum(1)
    torch.testing.assert_close(pairs.squared.double(), apart, rtol=0.02, atol=0)


@pytest.mark.parametrize(("looked_for", "count"), [(1 << 25, 40), (30 * SIZE, 30), (0, 20)])
def test_the_more_memories_the_fewer_others_each_looks_for(
    looked_for: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_LOOKED_FOR": looked_for, "MOST": 40, "LEAST": 20}.items():
        monkeypatch.setattr(f"sphere_replay.geometry.sparse.{name}", value)
    assert sparse(clusters()).neighbors.looked_for == count


def test_votes_out_of_reach_are_none() -> None:
    belongs = torch.arange(SIZE) % 2
    for eps, found in ((0.3, True), (1e-4, False)):
        sums = sparse(clusters(), 9).sums_by_class(eps, belongs, 2)
        assert bool(torch.cat([each for _, each in sums]).any()) == found


# Through the front door.


@pytest.mark.parametrize("control", [None, *Control])
def test_allocations_by_near_pairs_are_certified(control: Control | None) -> None:
    features, labels = clusters(1200), torch.randint(4, (1200,), generator=seeded(6))
    increments = random(1200, seed=7) + features[:, 0]
    recipe = Sphere.calibrated(control=control)
    found, exact = (
        allocate(
            increments,
            features,
            recipe,
            labels=labels,
            geometry=kind,
            generator=seeded(1),
        )
        for kind in ("sparse", "exact")
    )
    truth = float((found.probabilities - exact.probabilities).abs().sum()) / 2
    assert truth < 1e-3
    if found.error is not None:
        assert truth - 1e-5 <= found.error.total_variation < 0.01  # but for rounding
    assert math.isclose(found.mass, exact.mass, rel_tol=1e-3)
    assert len(found.draw(8, replacement=False, generator=seeded(2))) == 8
    torch.testing.assert_close(
        found.effective_neighbors, exact.effective_neighbors, rtol=1e-2, atol=1e-2
    )
    typical = median(found.effective_neighbors[spread(1200, 64)])
    assert found.typical_neighbors == pytest.approx(typical, rel=0.02)


def test_the_next_allocation_keeps_the_pairs_of_the_last() -> None:
    features, increments = clusters(600), random(600, seed=7)
    first = allocate(increments, features, geometry="sparse")
    assert isinstance(first.grouping, Neighbors)
    features[:10] += 0.1
    again = allocate(increments, features, geometry="sparse", grouping=first.grouping)
    assert isinstance(again.grouping, Neighbors)
    assert again.grouping.moved == 10
    for control in (Control.PERMUTED, None):
        recipe = Sphere.vision(control=control)
        found = allocate(
            increments,
            features,
            recipe,
            geometry="sparse",
            grouping=again.grouping,
            generator=seeded(1),
        )
        assert isinstance(found.grouping, Neighbors)
        assert found.grouping.others is again.grouping.others
    cells = allocate(increments, features, geometry="cells", grouping=first.grouping)
    assert cells.grouping is not None  # which pairs are of no use to
    assert not isinstance(cells.grouping, Neighbors)
