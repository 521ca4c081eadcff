"""Who is near whom: searched exactly or by faiss, and kept while features stay."""

import sys

import pytest
import torch

from geometry.nearby import SIZE, clusters, matrix, sparse, unit, whose
from sphere_replay.errors import DataError
from sphere_replay.geometry import Cosine, Distance, build_geometry, kept_of
from sphere_replay.geometry.neighbors import neighbors_of
from tensors import random

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
