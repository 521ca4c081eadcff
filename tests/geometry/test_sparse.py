"""Kernels of near pairs alone: who is near, what products they give, and what is kept of them."""

import math
import sys
from functools import partial

import pytest
import torch
from torch import Tensor

import reference
from sphere_replay.allocation import Control, Sphere, allocate
from sphere_replay.errors import DataError
from sphere_replay.geometry import (
    Cosine,
    Distance,
    Euclidean,
    Kept,
    Neighbors,
    SparseGeometry,
    SquaredEuclidean,
    build_geometry,
    kept_of,
)
from sphere_replay.geometry.neighbors import neighbors_of
from sphere_replay.geometry.sources import PointSource
from sphere_replay.numeric import median, spread
from tensors import random, seeded

DISTANCES: dict[str, Distance] = {
    "squared": SquaredEuclidean(),
    "euclidean": Euclidean(),
    "cosine": Cosine(0.4),
}
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


# By faiss.


def by_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss", reason="the extra `large` is not installed")
    monkeypatch.setattr("sphere_replay.geometry.neighbors.EXACT_PAIRS", 0)


def test_faiss_finds_nearly_all_of_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    features = clusters(8000)
    exact = sparse(features, 10).neighbors
    by_faiss(monkeypatch)
    found = sparse(features, 10).neighbors
    shared = matrix(found) & matrix(exact)
    assert shared.sum() > 0.8 * len(exact.others)
    assert torch.equal(matrix(found), matrix(found).T)
    torch.testing.assert_close(
        found.squared,
        (unit(features)[found.others] - unit(features)[whose(found)]).square().sum(1),
        rtol=1e-4,
        atol=1e-6,
    )


def unit(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features, dim=1)


def whose(pairs: Neighbors) -> Tensor:
    return torch.arange(len(pairs.prints)).repeat_interleave(pairs.starts.diff())


@pytest.mark.parametrize("count", [10, 64])
def test_the_more_are_wanted_the_more_are_looked_at(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = clusters(3000)
    exact = matrix(sparse(features, count).neighbors)
    by_faiss(monkeypatch)
    assert (matrix(sparse(features, count).neighbors) & exact).sum() > 0.9 * exact.sum()


def test_a_few_memories_of_many_are_searched_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    features = clusters(2000)
    first = sparse(features, 9).neighbors
    monkeypatch.setattr("sphere_replay.geometry.neighbors.EXACT_PAIRS", 20 * 2000)
    monkeypatch.setitem(sys.modules, "faiss", None)
    features[:20] += 1.0
    assert sparse(features, 9, before=first).neighbors.moved == 20


def test_faiss_has_its_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    by_faiss(monkeypatch)
    faiss = pytest.importorskip("faiss")
    faiss.omp_set_num_threads(7)
    sparse(clusters(500), 6)
    assert faiss.omp_get_max_threads() == 7
    faiss.omp_set_num_threads(1)


def test_with_more_copies_than_it_looks_for_nobody_is_near_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = clusters(2000)
    features[::2] = features[0]
    by_faiss(monkeypatch)
    pairs = sparse(features, 6).neighbors
    assert not (pairs.others == whose(pairs)).any()
    assert (pairs.starts.diff() >= 1).all()
    assert torch.equal(matrix(pairs), matrix(pairs).T)


def test_without_faiss_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphere_replay.geometry.neighbors.EXACT_PAIRS", 0)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(
        DataError, match=r"240 memories, .*needs faiss: pip install 'sphere-replay\[large\]'"
    ):
        build_geometry(clusters(), kind="sparse")


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


# What is kept.


def test_pairs_of_unchanged_features_are_kept_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = clusters()
    first = sparse(features, 9).neighbors
    monkeypatch.setattr(
        "sphere_replay.geometry.neighbors._nearest", lambda *_: pytest.fail("searched")
    )
    again = sparse(features.clone(), 9, before=kept_of(first._asdict())).kept
    assert again.moved == 0
    for one, other in zip(again[:4], first[:4], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("size", [SIZE - 40, SIZE, SIZE + 40])
def test_whoever_has_changed_is_searched_anew_and_all_others_keep_their_pairs(size: int) -> None:
    features = clusters(SIZE + 40)
    first = sparse(features[:SIZE], 9).neighbors
    features, changed = features[:size].clone(), torch.arange(size) >= SIZE
    changed[5:15] = True
    features[5:15] = random(10, 16, seed=8)
    again = sparse(features, 9, before=first).neighbors
    near, before, fresh = (matrix(each) for each in (again, first, neighbors_of(unit(features), 9)))
    both = min(size, SIZE)
    stayed = ~changed[:both, None] & ~changed[:both]
    assert torch.equal(near[:both, :both] & stayed, before[:both, :both] & stayed)
    searched = changed[:, None] | changed
    assert torch.equal(near, near.T)
    # Those who stay did not look again, and so miss only newcomers that did not find them.
    assert not (near & searched & ~fresh).any()
    assert (near & searched).sum() > 0.8 * (fresh & searched).sum()
    assert again.moved == int(changed.sum()) + max(0, SIZE - size)
    apart = (unit(features)[again.others] - unit(features)[whose(again)]).square().sum(1)
    torch.testing.assert_close(again.squared, apart, rtol=1e-4, atol=1e-6)


def test_who_had_looked_for_fewer_is_searched_anew() -> None:
    features = clusters()
    few, many = sparse(features, 3).neighbors, sparse(features, 9).neighbors
    assert torch.equal(matrix(sparse(features, 9, before=few).neighbors), matrix(many))
    assert sparse(features, 3, before=many).neighbors.others is many.others


def test_a_memory_that_has_lost_a_quarter_is_searched_anew() -> None:
    features = clusters()
    first = sparse(features, 9).neighbors
    few = features[: SIZE // 2]
    found = sparse(few, 9, before=first).neighbors
    assert found.moved == 0
    assert torch.equal(matrix(found), matrix(sparse(few, 9).neighbors))


@pytest.mark.parametrize("before", [Cosine(0.4), Cosine(0.4, center=True)])
def test_where_a_mean_moves_all_points_no_distance_is_kept(before: Distance) -> None:
    features, centered = clusters(), Cosine(0.4, center=True)
    first = sparse(features, 9, before).neighbors
    features[:20] += 3.0
    found = sparse(features, 9, centered, before=first).neighbors
    assert found.moved == 0
    fresh = sparse(features, 9, centered).neighbors
    assert torch.equal(found.others, fresh.others)
    assert torch.equal(found.squared, fresh.squared)


def test_pairs_that_were_saved_come_back_to_where_the_points_are() -> None:
    pairs = sparse(clusters(), 9).neighbors
    assert {each.device.type for each in pairs.on(torch.device("meta"))[:4]} == {"meta"}


def test_all_are_searched_once_a_quarter_has_changed() -> None:
    features = clusters()
    pairs = sparse(features, 9).neighbors
    moved = []
    for part in torch.split(torch.arange(SIZE), 24):
        features[part] += 0.01
        pairs = sparse(features, 9, before=pairs).neighbors
        moved.append(pairs.moved)
    assert moved == [24, 48, 0, 24, 48, 0, 24, 48, 0, 24]


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
