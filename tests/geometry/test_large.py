"""Geometries of cells: exact where all is near, close to exact by landmarks, and chosen by need."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

import reference
from sphere_replay.geometry import (
    CellGeometry,
    Cosine,
    DenseGeometry,
    Distance,
    Euclidean,
    LowRankGeometry,
    Precomputed,
    SquaredEuclidean,
    TiledGeometry,
    WholeGeometry,
    build_geometry,
)
from sphere_replay.geometry.far import Far
from sphere_replay.geometry.sources import PointSource
from tensors import random, seeded

DISTANCES: dict[str, Distance] = {
    "squared": SquaredEuclidean(),
    "euclidean": Euclidean(),
    "cosine": Cosine(0.4),
}


@pytest.fixture(autouse=True)
def small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping.LEAST_MEMBERS", 16)


def source(features: Tensor, distance: Distance | None = None) -> PointSource:
    found = (distance or SquaredEuclidean()).source(features)
    assert isinstance(found, PointSource)
    return found


def clustered(size: int, dim: int = 16, clusters: int = 12, spread: float = 0.3) -> Tensor:
    belongs = torch.randint(clusters, (size,), generator=seeded(3))
    return random(clusters, dim, seed=1)[belongs] + spread * random(size, dim, seed=2)


def exact(geometry: CellGeometry, features: Tensor) -> DenseGeometry:
    dense = DenseGeometry(source(features))
    dense.unit = geometry.unit
    return dense


@pytest.mark.parametrize("name", DISTANCES)
def test_where_every_cell_is_near_all_answers_are_those_of_plain_loops(name: str) -> None:
    features = clustered(90, 6)
    features[20], features[40] = 2 * features[3], 0.0
    rows = features.double().tolist()
    costs = torch.tensor(
        {
            "squared": lambda: reference.cost_squared(rows),
            "euclidean": lambda: reference.cost_euclidean(rows),
            "cosine": lambda: reference.cost_cosine(rows, 0.4, False),
        }[name](),
        dtype=torch.float64,
    )
    geometry = CellGeometry(source(features, DISTANCES[name]), pairs=90)
    geometry.unit = DISTANCES[name].unit(geometry)
    kernel, vectors = torch.exp(-costs / 0.3), random(90, 2, seed=4, dtype=torch.float64)
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-3)
    assert len(geometry.cells) >= 5
    found = geometry.costs(torch.arange(90), slice(30, 80))
    close(found.double(), costs[:, geometry.order[30:80]])
    close(geometry.apply_kernel(0.3, vectors), kernel @ vectors)
    others = geometry.apply_kernel(0.3, vectors, others_only=True)
    close(others, kernel.fill_diagonal_(0) @ vectors)
    log_vector = 50 * random(90, seed=5, dtype=torch.float64)
    close(
        geometry.apply_log_kernel(0.3, log_vector),
        torch.logsumexp(-costs / 0.3 + log_vector, dim=1),
    )
    around, smoother = geometry.neighborhood(0.3), torch.softmax(-costs / 0.3, dim=1)
    close(around.effective_size, 1 / smoother.square().sum(1))
    close(around.radius, (smoother * costs).sum(1), rtol=2e-3, atol=2e-3)
    radii = geometry.neighbor_radius([5, 200])
    for found, k in zip(radii, (5, 89), strict=True):
        wanted = torch.tensor(reference.neighbour_radius(costs.tolist(), k), dtype=torch.float64)
        close(found, wanted)
    pairs = costs[torch.ones_like(costs).triu(1).bool()].tolist()
    assert geometry.median_distance() == pytest.approx(reference.percentile(pairs, 0.5), rel=1e-4)


def test_scales_by_wanted_neighbors_are_those_of_the_exact_geometry() -> None:
    features = clustered(500)
    geometry = CellGeometry(source(features))
    wanted = [3.0, 20.0]
    expected = exact(geometry, features).kernel_scales(wanted)
    assert geometry.kernel_scales(wanted) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("name", DISTANCES)
def test_moments_of_cells_come_close_to_what_is_far(name: str) -> None:
    features = clustered(1500, spread=0.6)
    geometry = CellGeometry(source(features, DISTANCES[name]), pairs=100)
    dense = DenseGeometry(source(features, DISTANCES[name]))
    eps = float(dense.neighbor_radius([25]).median())
    smooth = (features @ random(16, seed=6)).tanh() + 0.2 * random(1500, seed=7)
    vectors = torch.stack([torch.ones(1500), smooth], dim=1)
    found, wanted = geometry.apply_kernel(eps, vectors), dense.apply_kernel(eps, vectors)
    assert "by moments" in geometry.explained()
    assert found[:, 0].min() >= 1
    near = replace(geometry.plan(eps), far=None)
    stacked = vectors[geometry.cells.members]
    held = geometry._by_plan(near, eps, stacked, others_only=False)[geometry.cells.places]
    left_out = wanted - held
    error = ((found - wanted) / wanted[:, :1]).abs().mean(dim=0)
    assert (error < 0.01).all()
    assert (error < 0.1 * (left_out / wanted[:, :1]).abs().mean(dim=0)).all()


def test_products_are_linear_and_keep_what_is_not_negative() -> None:
    features = clustered(800, spread=0.6)
    geometry = CellGeometry(source(features), pairs=50)
    u, v = random(800, seed=6), random(800, seed=7)
    together = geometry.apply_kernel(0.4, 2 * u - 3 * v)
    apart = 2 * geometry.apply_kernel(0.4, u) - 3 * geometry.apply_kernel(0.4, v)
    torch.testing.assert_close(together, apart, rtol=1e-3, atol=1e-3)
    single = torch.zeros(800)
    single[17] = 1.0
    assert geometry.plan(0.4).far is not None
    assert geometry.apply_kernel(0.4, single).min() >= 0


def test_wide_kernels_take_moments_local_ones_near_cells() -> None:
    features = clustered(1500)
    geometry = CellGeometry(source(features), pairs=300)
    assert geometry.plan(5.0).why.startswith("low rank: N_eff 1")
    assert geometry.plan(5.0).near.sum() == len(geometry.cells)
    assert geometry.plan(0.002).why.startswith("sparse: N_eff 1 of 1500")
    assert geometry.plan(0.002).far is None
    assert geometry.plan(0.3).why.startswith("mixed: N_eff")


def test_moments_that_are_no_closer_than_nothing_make_room_for_more_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.large._WIDER", (2,))
    features = clustered(1500)
    usual = CellGeometry(source(features), pairs=300).plan(0.3)
    assert usual.why.startswith("mixed")
    assert 0 < usual.share < 1

    def far_off(_: Far, places: Tensor) -> tuple[Tensor, Tensor]:
        return torch.eye(len(places))[0], torch.zeros(len(places))

    monkeypatch.setattr(Far, "sums", far_off)
    plan = CellGeometry(source(features), pairs=300).plan(0.3)
    assert plan.far is None
    assert bool((plan.near | ~usual.near).all())  # all that was near still is
    assert plan.share < usual.share
    assert "is left out" in plan.why
    assert LowRankGeometry(source(features)).plan(0.3).far is not None  # as asked for


def test_kernels_that_moments_do_not_carry_have_more_pairs_while_these_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, ones = clustered(2000, clusters=10, spread=0.02), torch.ones(2000)
    geometry = CellGeometry(source(features), pairs=100)
    dense = exact(geometry, features)
    (eps,) = dense.neighbor_radius([25]).median(dim=1).values.tolist()
    plan, expected = geometry.plan(eps), dense.apply_kernel(eps, ones)
    assert plan.far is None
    assert "near cells and the next hold all of it" in plan.why
    torch.testing.assert_close(geometry.apply_kernel(eps, ones), expected, rtol=1e-3, atol=0)
    monkeypatch.setattr("sphere_replay.geometry.large._PAIRS_AT_MOST", 2000 * 100)
    few = CellGeometry(source(features), pairs=100)
    assert few.plan(eps).near.sum() < plan.near.sum()
    off = (few.apply_kernel(eps, ones) / expected - 1).abs().mean()
    assert 1e-3 < float(off) < 0.05


@pytest.mark.parametrize(("dim", "worth_it"), [(8, True), (32, False)])
def test_more_pairs_must_be_worth_their_time(
    dim: int, worth_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, ones = random(3000, dim, seed=1), torch.ones(3000)
    geometry = CellGeometry(source(features), pairs=100)
    eps = 2 * geometry.kernel_scales([8.0])[0]
    pairs = int(geometry.plan(eps).near.sum())
    monkeypatch.setattr("sphere_replay.geometry.large._WIDER", ())
    few = CellGeometry(source(features), pairs=100)
    assert (pairs > int(few.plan(eps).near.sum())) == worth_it
    expected = exact(geometry, features).apply_kernel(eps, ones)
    found, without = (
        float((each.apply_kernel(eps, ones) / expected - 1).abs().mean())
        for each in (geometry, few)
    )
    assert (found < 0.75 * without) == worth_it


@pytest.mark.parametrize("spread", [1e-2, 1e-3])
def test_beside_far_clusters_tight_ones_have_their_products_to_all_digits(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = clustered(1200, clusters=6, spread=spread)
    geometry = CellGeometry(source(features), pairs=800)  # more than a cluster has
    dense, vector = exact(geometry, features), random(1200, seed=4)
    (eps,) = dense.neighbor_radius([25]).median(dim=1).values.tolist()
    expected = dense.apply_kernel(eps, torch.stack([torch.ones(1200), vector], dim=1))
    plan = geometry.plan(eps)
    assert plan.far is None
    monkeypatch.setattr(torch, "cdist", lambda *_, **__: pytest.fail("pair by pair"))
    found = geometry.apply_kernel(eps, torch.stack([torch.ones(1200), vector], dim=1))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_tight_clusters_leave_no_rest_that_rounding_could_blow_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.large._WIDER", ())
    features = clustered(2000, clusters=10, spread=0.02)
    geometry = CellGeometry(source(features), pairs=100)
    dense, ones = exact(geometry, features), torch.ones(len(features))
    (eps,) = dense.neighbor_radius([25]).median(dim=1).values.tolist()
    assert geometry.plan(eps).far is not None
    found, expected = geometry.apply_kernel(eps, ones), dense.apply_kernel(eps, ones)
    assert float((found / expected - 1).abs().mean()) < 0.05


@pytest.mark.parametrize("kind", [CellGeometry, LowRankGeometry])
def test_logarithms_are_numbers_and_take_few_products(
    kind: type[CellGeometry], monkeypatch: pytest.MonkeyPatch
) -> None:
    geometry = kind(source(clustered(1500)))
    log_vector = 300 * random(1500, seed=4, dtype=torch.float64)
    target, log_reached = geometry.log_transport(0.3, log_vector)
    assert bool(target.isfinite().all())
    assert bool((log_reached >= log_vector).all())
    products, plain = 0, CellGeometry.apply_kernel

    def counted(
        self: CellGeometry, eps: float, vectors: Tensor, *, others_only: bool = False
    ) -> Tensor:
        nonlocal products
        products += 1
        return plain(self, eps, vectors, others_only=others_only)

    monkeypatch.setattr(CellGeometry, "apply_kernel", counted)
    geometry.apply_log_kernel(0.3, log_vector * 10)  # two hundred bands, of which few can matter
    assert products <= 3
    products, log_vector[7] = 0, 1e6
    geometry.apply_log_kernel(0.3, log_vector)
    assert products == 0


def test_logarithms_of_few_are_carried_however_far() -> None:
    far_apart = torch.cat([torch.eye(4)[:1].repeat(20, 1), torch.eye(4)[1:2].repeat(380, 1)])
    features = far_apart + 0.01 * random(400, 4)
    log_vector = torch.where(torch.arange(400) < 20, 0.0, -495.0).double()
    geometry = CellGeometry(source(features), pairs=100)
    found = geometry.apply_log_kernel(0.01, log_vector)
    expected = exact(geometry, features).apply_log_kernel(0.01, log_vector)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("eps", [0.5, 2e-3])
def test_products_are_the_same_in_tiles_and_batches_of_any_size(
    name: str, eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, vectors = clustered(300, 6), random(300, 2, seed=4)
    geometry = build_geometry(features, DISTANCES[name], kind="cells")
    usual = geometry.apply_kernel(eps, vectors, others_only=True)
    # Narrower than some cells, and wider than the number of cells.
    monkeypatch.setattr("sphere_replay.geometry.large._WIDTH", 8)
    monkeypatch.setattr("sphere_replay.geometry.large._TOGETHER", 1000)
    monkeypatch.setattr("sphere_replay.geometry.moments.TOGETHER", 3)
    other = build_geometry(features, DISTANCES[name], kind="cells")
    assert isinstance(other, CellGeometry)
    assert other.cells.sizes.max() > 8
    found = other.apply_kernel(eps, vectors, others_only=True)
    torch.testing.assert_close(found, usual, rtol=1e-4, atol=1e-5)


def test_cells_in_a_row_are_the_same_as_one_by_one() -> None:
    cells = CellGeometry(source(clustered(400))).cells
    for batch in torch.split(torch.arange(len(cells)), 7):
        alone = [cells.points[cells.spans[cell]] - cells.centers[cell] for cell in batch.tolist()]
        around, slots = cells.around(batch), cells.slots(batch)
        assert torch.equal(around, torch.cat(alone))
        for filled, own in zip(slots.filled(around), alone, strict=True):
            assert torch.equal(filled[: len(own)], own)
            assert not filled[len(own) :].any()
        assert torch.equal(slots.emptied(slots.filled(around)), around)
        places, own_cell = cells.together(batch)
        assert torch.equal(cells.cell_of[places], batch[own_cell])


def test_many_cells_are_found_in_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping._MOST_GROUPS", 6)
    features = clustered(1500)
    cells = CellGeometry(source(features)).cells
    assert 60 <= len(cells) <= 140
    assert torch.equal(cells.members.sort().values, torch.arange(1500))
    inside = cells.around(torch.arange(len(cells)))
    assert inside.square().sum() < 0.3 * (cells.points - cells.points.mean(dim=0)).square().sum()


def test_many_clusters_that_are_far_are_seen_in_all_their_directions() -> None:
    features = clustered(3000, 32, clusters=60, spread=0.4)
    geometry = CellGeometry(source(features), pairs=100)
    eps = float(exact(geometry, features).neighbor_radius([25]).median())
    ones = torch.ones(len(features))
    found, wanted = (g.apply_kernel(eps, ones) for g in (geometry, exact(geometry, features)))
    assert geometry.plan(eps).why.startswith("mixed")
    assert float((found / wanted - 1).abs().mean()) < 6e-4


@pytest.mark.parametrize("name", DISTANCES)
def test_cells_with_little_part_in_the_kernel_count_as_one_that_varies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = clustered(3000, 32, clusters=60, spread=0.4)
    dense = DenseGeometry(source(features, DISTANCES[name]))
    eps, ones = float(dense.neighbor_radius([25]).median()), torch.ones(len(features))
    wanted = dense.apply_kernel(eps, ones)

    def error(told_apart: int) -> float:
        monkeypatch.setattr("sphere_replay.geometry.far._TOLD_APART", told_apart)
        geometry = CellGeometry(source(features, DISTANCES[name]), pairs=100)
        assert len(geometry.cells) > 150
        return float((geometry.apply_kernel(eps, ones) / wanted - 1).abs().mean())

    every = error(1000)
    varied = error(40)
    assert varied < 3 * every
    monkeypatch.setattr(
        "sphere_replay.geometry.far.Far._variation",
        lambda far, slopes: slopes.new_zeros(slopes.shape[1], slopes.shape[1]),
    )
    assert error(40) > 1.3 * varied


def test_low_rank_does_as_it_is_told() -> None:
    features = clustered(1500)
    ones, geometry = torch.ones(1500), LowRankGeometry(source(features))
    wide = exact(geometry, features).apply_kernel(5.0, ones)
    torch.testing.assert_close(geometry.apply_kernel(5.0, ones), wide, rtol=1e-3, atol=0.0)
    assert "as asked for" in geometry.explained()


def test_coincident_memories_count_fully_at_any_scale() -> None:
    features = random(40, 8).repeat_interleave(torch.arange(1, 41), dim=0)
    geometry = CellGeometry(source(features))
    copies = torch.arange(1, 41).repeat_interleave(torch.arange(1, 41)).double()
    ones = torch.ones(len(features))
    torch.testing.assert_close(geometry.apply_kernel(1e-12, ones), copies)
    torch.testing.assert_close(geometry.apply_kernel(1e-12, ones, others_only=True), copies - 1)
    assert geometry.neighbor_radius([1]).median() == 0


@pytest.mark.parametrize("eps", [2e-3, 5e-4])
def test_roots_of_small_distances_show_no_rounding(eps: float) -> None:
    features = random(750, 8).repeat(2, 1)
    geometry = CellGeometry(source(features, Euclidean()))
    twins = geometry.apply_kernel(eps, torch.ones(1500))
    torch.testing.assert_close(twins, torch.full_like(twins, 2.0), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("dim", range(1, 9))
def test_cells_with_all_directions_of_their_own_have_nothing_in_common(dim: int) -> None:
    for seed in range(5):
        flat = random(1500, dim, seed=seed) @ random(dim, 32, seed=seed + 1)
        assert float(CellGeometry(source(flat), pairs=100)._moments.share.max()) < 100


@pytest.mark.parametrize("copies", [13, 20])
def test_cells_of_copies_have_moments(copies: int) -> None:
    features = random(2000 // copies, 32).repeat(copies, 1)
    moments = CellGeometry(source(features), pairs=100)._moments
    assert all(bool(each.isfinite().all()) for each in (moments.factors, moments.seen))


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_no_memory_has_more_neighbours_than_there_are(share: float) -> None:
    features = clustered(1500, 32)
    features[: int(1500 * share)] = 0.0
    for kind in (CellGeometry, LowRankGeometry):
        around = kind(source(features), pairs=100).neighborhood(1e-12)
        assert bool(around.mass.isfinite().all())
        assert float(around.effective_size.max()) <= 1500


def test_diagnostics_leave_no_plans_behind() -> None:
    geometry = CellGeometry(source(clustered(600)), pairs=100)
    geometry.plan(0.3)
    geometry.neighborhood(0.3)
    assert geometry.explained().count("eps") == 2  # of the kernel, and of its square


def test_a_cluster_of_one_point_is_cut_into_cells_of_bearable_size() -> None:
    features = torch.cat([torch.ones(900, 4), random(100, 4)])
    cells = CellGeometry(source(features)).cells
    assert cells.sizes.max() <= 2 * 16 + 1
    assert torch.equal(cells.members.sort().values, torch.arange(1000))
    assert torch.equal(cells.members[cells.places], torch.arange(1000))


def test_the_choice_is_by_size_and_budget_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    features = clustered(200)
    assert isinstance(build_geometry(features), WholeGeometry)
    monkeypatch.setattr("sphere_replay.geometry.build.EXACT_UP_TO", 100)
    large, forced = build_geometry(features), build_geometry(features, kind="exact", budget=1000)
    assert isinstance(large, CellGeometry)
    assert large.why == "cells: 200 memories, up to 100 are exact"
    assert isinstance(forced, TiledGeometry)
    assert forced.why.startswith("tiled: 200 memories, exact was asked for")
    matrix = (features[:, None] - features).norm(dim=2)
    given = build_geometry(matrix, Precomputed())
    assert isinstance(given, WholeGeometry)
    assert "without features" in given.why
    with pytest.raises(ValueError, match=r"sparse geometries look at points, .* none"):
        build_geometry(matrix, Precomputed(), kind="sparse")
    with pytest.raises(ValueError, match="unknown geometry 'fast'; known: auto, exact"):
        build_geometry(features, kind="fast")
