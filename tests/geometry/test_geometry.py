"""Whole, dense and tiled geometries against plain loops: products, radii, medians, memory."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import Tensor

import reference
from sphere_replay.geometry import (
    Cosine,
    DenseGeometry,
    Distance,
    Euclidean,
    Geometry,
    PermutedGeometry,
    Precomputed,
    SquaredEuclidean,
    TiledGeometry,
    WholeGeometry,
    build_geometry,
    center_embeddings,
    neighbor_distance_scale,
)
from sphere_replay.geometry.order import place_of_smallest, smallest
from sphere_replay.geometry.tiles import TileGeometry
from tensors import random, seeded

DISTANCES: dict[str, Distance] = {
    "squared": SquaredEuclidean(),
    "euclidean": Euclidean(),
    "cosine": Cosine(0.4),
}


doubles = partial(random, dtype=torch.float64)


def costs(distance: str, features: Tensor) -> Tensor:
    rows = features.double().tolist()
    matrix = {
        "squared": lambda: reference.cost_squared(rows),
        "euclidean": lambda: reference.cost_euclidean(rows),
        "cosine": lambda: reference.cost_cosine(rows, 0.4, False),
    }[distance]()
    return torch.tensor(matrix, dtype=torch.float64)


def build(kind: str, distance: Distance, features: Tensor) -> TileGeometry:
    source = distance.source(features)
    geometry: TileGeometry
    if kind in ("tiled", "partly kept"):
        geometry = TiledGeometry(source, budget=0 if kind == "tiled" else 20_000)
    else:
        geometry = DenseGeometry(source) if kind == "dense" else WholeGeometry(source)
    geometry.unit = distance.unit(geometry)
    return geometry


@pytest.fixture(params=["whole", "dense", "tiled", "partly kept"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sphere_replay.geometry.tiling.TILE", {"cpu": 16})
    return str(request.param)


@pytest.fixture(params=DISTANCES)
def distance(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def features() -> Tensor:
    features = doubles(55, 6)
    features[20] = features[3] * 2
    features[40] = 0.0
    return features


def test_kernel_products(kind: str, distance: str, features: Tensor) -> None:
    geometry = build(kind, DISTANCES[distance], features)
    kernel = torch.exp(-costs(distance, features) / 0.3)
    vector, matrix = doubles(55, seed=1), doubles(55, 3, seed=2)
    torch.testing.assert_close(geometry.apply_kernel(0.3, vector), kernel @ vector)
    torch.testing.assert_close(geometry.apply_kernel(0.3, matrix), kernel @ matrix)


def test_log_kernel_products(kind: str, distance: str, features: Tensor) -> None:
    geometry = build(kind, DISTANCES[distance], features)
    exponents = -costs(distance, features) / 1e-3 + 1e3 * doubles(55, seed=1)
    expected = torch.logsumexp(exponents, dim=1)
    torch.testing.assert_close(geometry.apply_log_kernel(1e-3, 1e3 * doubles(55, seed=1)), expected)


def test_log_kernel_of_a_single_mass(kind: str, features: Tensor) -> None:
    geometry = build(kind, SquaredEuclidean(), features)
    log_vector = torch.full((55,), -torch.inf, dtype=torch.float64)
    log_vector[7] = 0.0
    expected = -costs("squared", features)[7] / 0.01
    torch.testing.assert_close(geometry.apply_log_kernel(0.01, log_vector), expected)


def test_neighborhoods(kind: str, distance: str, features: Tensor) -> None:
    around = build(kind, DISTANCES[distance], features).neighborhood(0.3)
    matrix = costs(distance, features)
    kernel = torch.exp(-matrix / 0.3)
    smoother = kernel / kernel.sum(1, keepdim=True)
    torch.testing.assert_close(around.mass, kernel.sum(1))
    torch.testing.assert_close(around.effective_size, 1 / smoother.square().sum(1))
    torch.testing.assert_close(around.radius, (smoother * matrix).sum(1))


def test_neighbor_radii(kind: str, distance: str, features: Tensor) -> None:
    radius = build(kind, DISTANCES[distance], features).neighbor_radius([1, 5, 25, 54, 99])
    matrix = costs(distance, features).tolist()
    for found, k in zip(radius, (1, 5, 25, 54, 54), strict=True):
        expected = torch.tensor(reference.neighbour_radius(matrix, k), dtype=torch.float64)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [2, 3, 55, 56])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_median_distance(kind: str, size: int, dtype: torch.dtype) -> None:
    features = doubles(size, 6).to(dtype)
    geometry = build(kind, SquaredEuclidean(), features)
    matrix = costs("squared", features)
    pairs = matrix[torch.ones_like(matrix).triu(1).bool()].tolist()
    expected = reference.percentile(pairs, 0.5)
    precision = 1e-12 if dtype == torch.float64 else 1e-6
    assert geometry.median_distance() == pytest.approx(expected, rel=precision)


def test_median_of_coincident_points(kind: str) -> None:
    assert build(kind, SquaredEuclidean(), torch.ones(20, 3)).median_distance() == 0.0
    mostly = torch.cat([torch.ones(20, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])]).double()
    # 190 of 231 pairs coincide; of the others 40 are at 2 - √2 and one is at 2.
    expected = 2 - 2**0.5
    assert build(kind, SquaredEuclidean(), mostly).median_distance() == pytest.approx(expected)


@pytest.mark.parametrize("spread", [1e-1, 1e-2, 1e-3, 1e-4, 1e-6])
def test_float32_distances_sharpen_with_the_kernel_scale(spread: float) -> None:
    """Tight clusters: the relative error of the kernel stays small however small the scale is."""
    centers = random(5, 16)
    features = centers.repeat(20, 1) + spread * random(100, 16, seed=1)
    geometry = build_geometry(features)
    matrix = costs("squared", features)
    eps = float(geometry.neighbor_radius([5]).median())
    exact = torch.tensor(reference.neighbour_radius(matrix.tolist(), 5)).median()
    assert eps == pytest.approx(float(exact), rel=2e-5)
    ones = torch.ones(100, dtype=torch.float64)
    expected = torch.exp(-matrix / eps).sum(1)
    torch.testing.assert_close(geometry.apply_kernel(eps, ones), expected, rtol=1e-5, atol=0)


def test_coincident_points_are_at_distance_zero_in_any_precision() -> None:
    factors = torch.rand(50, 1, dtype=torch.float64, generator=seeded())
    features = doubles(1, 64).repeat(50, 1) * factors
    for dtype in (torch.float32, torch.float64):
        source = SquaredEuclidean().source(features.to(dtype))
        source.sharpen(1e-12)
        block = source.block(slice(0, 25), slice(25, 50))
        assert float(block.max()) < (1e-30 if dtype == torch.float64 else 1e-13)


def test_a_large_memory_is_tiled_within_its_budget() -> None:
    features = random(3000, 8)
    geometry = build_geometry(features, budget=4 << 20)
    assert isinstance(geometry, TiledGeometry)
    assert isinstance(build_geometry(features), DenseGeometry)
    geometry.neighbor_radius([5])
    geometry.apply_kernel(1.0, torch.ones(3000))
    kept = sum(tile.nbytes for tile in geometry._kept.values())
    assert kept <= 4 << 20
    dense = build_geometry(features).apply_kernel(1.0, torch.ones(3000))
    torch.testing.assert_close(geometry.apply_kernel(1.0, torch.ones(3000)), dense)


@pytest.mark.parametrize("count", [1, 6, 26])
@pytest.mark.parametrize("width", [30, 501, 2048, 2049, 4000])
def test_smallest_values_of_rows(count: int, width: int) -> None:
    rows = random(9, width).abs()
    rows[2] = 1.0
    rows[3] = rows[3].round()
    assert torch.equal(smallest(rows, count), rows.sort(dim=1).values[:, :count])


@pytest.mark.parametrize("numpy", [True, False])
def test_places_of_smallest_values(numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphere_replay.geometry.order._NUMPY", numpy)
    rows = random(40, 100)
    rows[3, 70:] = rows[3].min() - 1
    found = place_of_smallest(rows)
    assert torch.equal(rows.gather(1, found[:, None])[:, 0], rows.amin(dim=1))
    assert found[3] == 70


def test_a_negative_zero_is_no_distance_either() -> None:
    places = torch.rand(1100, 1, generator=seeded())
    matrix = (places - places.T).abs()
    matrix[:300, :300] = 0.0
    signed = matrix.clone()
    signed[:300, :300] = -0.0
    plain, odd = (build_geometry(costs, Precomputed()) for costs in (matrix, signed))
    assert odd.median_distance() == plain.median_distance() > 0


def test_permuted_geometry_is_the_geometry_of_permuted_rows(features: Tensor) -> None:
    places = torch.randperm(55, generator=seeded())
    moved = PermutedGeometry(build_geometry(features), places)
    expected = build_geometry(features[places])
    vector = doubles(55, seed=1)
    pairs = [
        (moved.apply_kernel(0.3, vector), expected.apply_kernel(0.3, vector)),
        (moved.apply_log_kernel(0.3, vector), expected.apply_log_kernel(0.3, vector)),
        (moved.neighbor_radius([3, 9]), expected.neighbor_radius([3, 9])),
        (moved.neighborhood(0.3).radius, expected.neighborhood(0.3).radius),
    ]
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted)
    assert moved.median_distance() == pytest.approx(expected.median_distance())
    assert isinstance(moved, Geometry)


def test_embeddings_are_normalised_centred_and_normalised() -> None:
    features = doubles(30, 5) + 3
    centred = center_embeddings(features)
    unit = features / features.norm(dim=1, keepdim=True)
    expected = unit - unit.mean(0)
    torch.testing.assert_close(centred, expected / expected.norm(dim=1, keepdim=True))
    matrix = torch.tensor(reference.cost_cosine(centred.tolist(), 1.0, False))
    eighth = torch.tensor(reference.neighbour_radius(matrix.tolist(), 8))
    assert neighbor_distance_scale(centred) == pytest.approx(
        reference.percentile(eighth.tolist(), 0.5)
    )
    assert float(center_embeddings(torch.ones(4, 3)).abs().max()) == 0.0


def test_kernel_products_with_others_only(kind: str, distance: str, features: Tensor) -> None:
    geometry = build(kind, DISTANCES[distance], features)
    kernel = torch.exp(-costs(distance, features) / 0.02).fill_diagonal_(0)
    matrix = doubles(55, 3, seed=2).abs()
    found = geometry.apply_kernel(0.02, matrix, others_only=True)
    torch.testing.assert_close(found, kernel @ matrix, rtol=1e-9, atol=0)
    places = torch.randperm(55, generator=seeded())
    moved = PermutedGeometry(geometry, places)
    expected = build(kind, DISTANCES[distance], features[places])
    torch.testing.assert_close(
        moved.apply_kernel(0.02, matrix, others_only=True),
        expected.apply_kernel(0.02, matrix, others_only=True),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nobody_is_in_reach_of_a_vanishing_kernel(kind: str, dtype: torch.dtype) -> None:
    geometry = build(kind, SquaredEuclidean(), torch.eye(40, dtype=dtype))
    ones = torch.ones(40, dtype=torch.float64)
    assert geometry.apply_kernel(1e-9, ones, others_only=True).tolist() == [0.0] * 40
    assert geometry.apply_kernel(1e-9, ones).tolist() == [1.0] * 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_scales(kind: str, distance: str, features: Tensor, dtype: torch.dtype) -> None:
    geometry = build(kind, DISTANCES[distance], features.to(dtype)[:32])  # all of these are sampled
    for eps, wanted in zip(geometry.kernel_scales([4.0, 12.0]), (4, 12), strict=True):
        sizes = geometry.neighborhood(eps).effective_size
        assert float(sizes.quantile(0.5)) == pytest.approx(wanted, rel=2e-3)
    places = torch.randperm(32, generator=seeded())
    assert PermutedGeometry(geometry, places).kernel_scales([4.0]) == geometry.kernel_scales([4.0])


def test_kernel_scales_know_neither_budget_nor_the_period_that_classes_come_in() -> None:
    """One class in ten is tight: a sample of it alone would have another scale altogether."""
    tight = torch.arange(2560) % 10 == 0
    features = random(10, 12).repeat(256, 1) + random(2560, 12, seed=1) * torch.where(
        tight, 0.01, 0.5
    ).unsqueeze(1)
    (eps,) = build_geometry(features).kernel_scales([8.0])
    shuffled = features[torch.randperm(2560, generator=seeded())]
    assert build_geometry(shuffled).kernel_scales([8.0])[0] == pytest.approx(eps, rel=0.15)
    tiled = build_geometry(features, budget=1 << 20)
    assert isinstance(tiled, TiledGeometry)
    assert tiled.kernel_scales([8.0])[0] == pytest.approx(eps, rel=1e-4)
    cells = build_geometry(features, kind="cells")
    assert cells.kernel_scales([8.0])[0] == pytest.approx(eps, rel=1e-3)


def test_kernel_scales_far_below_float32_rounding(kind: str) -> None:
    generator = seeded()
    center = torch.randn(1, 6, generator=generator, dtype=torch.float64)
    features = center + 1e-5 * torch.randn(300, 6, generator=generator, dtype=torch.float64)
    (sharp,) = build(kind, SquaredEuclidean(), features).kernel_scales([8.0])
    geometry = build(kind, SquaredEuclidean(), torch.cat([features, -center]).float())
    (eps,) = geometry.kernel_scales([8.0])
    assert sharp < 1e-9
    assert eps == pytest.approx(sharp, rel=0.2)


def test_memory_handed_on_from_one_geometry_to_the_next_changes_nothing() -> None:
    features, ones = random(60, 8), torch.ones(60)
    fresh = build_geometry(features).apply_kernel(0.5, ones)
    with torch.inference_mode():
        radii = build_geometry(features).neighbor_radius([3])
        inside = build_geometry(features).apply_kernel(0.5, ones)
    kept = build_geometry(features)
    first = kept.apply_kernel(0.5, ones)
    for size in (40, 60, 20):  # others come and go meanwhile
        other = build_geometry(random(size, 8, seed=1))
        other.apply_kernel(0.7, torch.ones(size))
        assert other.neighbor_radius([3]).shape == (1, size)
    assert torch.equal(kept.neighbor_radius([3]), radii)
    for again in (inside, first, kept.apply_kernel(0.5, ones)):
        assert torch.equal(again, fresh)


def test_a_whole_geometry_is_left_as_it_was_by_errors_threads_and_modes() -> None:
    features, vector = doubles(60, 5), doubles(60, seed=1)
    geometry = build_geometry(features)
    assert isinstance(geometry, WholeGeometry)
    kernel = torch.exp(-costs("squared", features) / 0.3)
    others = (kernel - torch.eye(60)) @ vector
    with pytest.raises(RuntimeError):
        geometry.apply_kernel(0.3, vector[:59], others_only=True)
    with torch.inference_mode():
        torch.testing.assert_close(geometry.apply_kernel(0.3, vector, others_only=True), others)
    with ThreadPoolExecutor(4) as callers:
        turns = list(range(40))
        found = callers.map(
            lambda turn: geometry.apply_kernel(0.3, vector, others_only=turn % 2 == 0), turns
        )
        for turn, product in zip(turns, found, strict=True):
            torch.testing.assert_close(product, kernel @ vector if turn % 2 else others)
    column = geometry.apply_kernel(0.3, vector[:, None])
    torch.testing.assert_close(column[:, 0], geometry.apply_kernel(0.3, vector))


def test_a_whole_geometry_keeps_few_kernels() -> None:
    features, ones = doubles(40, 5), torch.ones(40, dtype=torch.float64)
    geometry = WholeGeometry(SquaredEuclidean().source(features))
    for eps in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        expected = torch.exp(-costs("squared", features) / eps).sum(1)
        torch.testing.assert_close(geometry.apply_kernel(eps, ones), expected)
    assert len(geometry._kernels) == 4


def test_points_of_one_number_are_one_or_minus_one() -> None:
    signs = torch.tensor([1.0, -1.0]).repeat(10)
    geometry = build_geometry(
        (torch.rand(20, generator=seeded()) * 7 + 0.1)[:, None] * signs[:, None]
    )
    near, far = geometry.neighbor_radius([9, 10])
    assert near.tolist() == [0.0] * 20
    assert far.tolist() == [4.0] * 20


def test_a_scale_that_is_no_number_sharpens_nothing() -> None:
    source = SquaredEuclidean().source(random(30, 4))
    assert not source.sharpen(float("nan"))
    with pytest.raises(ValueError, match="d0 must be positive and finite, got 1e\\+308"):
        Cosine(d0=1e308)
