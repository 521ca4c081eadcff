"""Groups of near points: kept where features stay, joined by the others, found anew in time."""

import pytest
import torch
from torch import Tensor

from sphere_replay import allocate
from sphere_replay.geometry import CellGeometry, build_geometry
from sphere_replay.geometry.grouping import Grouping, grouped, prints_of
from tensors import random, seeded

SIZE = 600


@pytest.fixture(autouse=True)
def small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping.LEAST_MEMBERS", 16)


def clusters(size: int = SIZE) -> Tensor:
    return random(12, 8)[torch.arange(size) % 12] + 0.2 * random(size, 8, seed=1)


def group(features: Tensor, before: Grouping | None = None) -> Grouping:
    return grouped(features, features.float(), seeded(), before)


def cells_of(features: Tensor, before: Grouping | None = None) -> CellGeometry:
    geometry = build_geometry(features, kind="cells", before=before)
    assert isinstance(geometry, CellGeometry)
    return geometry


def together(grouping: Grouping) -> set[frozenset[int]]:
    return {frozenset(members.tolist()) for members in grouping.members()}


def test_the_same_features_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    features = clusters()
    first = group(features)
    monkeypatch.setattr("sphere_replay.geometry.grouping._found", lambda *_: pytest.fail("found"))
    again = group(features.clone(), first)
    assert torch.equal(again.cells, first.cells)
    assert again.moved == 0


@pytest.mark.parametrize(("at_once", "with_others"), [(1 << 20, 1 << 13), (1, 1 << 13), (900, 60)])
def test_many_groups_are_split_together_and_large_ones_alone(
    at_once: int, with_others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping._MOST_GROUPS", 7)
    monkeypatch.setattr("sphere_replay.geometry.grouping._SPLIT_AT_ONCE", at_once)
    monkeypatch.setattr("sphere_replay.geometry.grouping._SPLIT_WITH_OTHERS", with_others)
    features = clusters()
    features[:200] = features[0] + 0.01 * random(200, 8, seed=2)
    groups = group(features).members()
    assert torch.equal(torch.cat(groups).sort().values, torch.arange(SIZE))
    assert 25 <= len(groups) <= 60
    within = sum(float((features[g] - features[g].mean(dim=0)).square().sum()) for g in groups)
    assert within < 0.15 * float((features - features.mean(dim=0)).square().sum())


def test_copies_of_one_point_beyond_all_limits_are_still_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping._MOST_GROUPS", 7)
    monkeypatch.setattr("sphere_replay.geometry.grouping._SPLIT_WITH_OTHERS", 60)
    groups = group(torch.ones(SIZE, 8)).members()
    assert torch.equal(torch.cat(groups).sort().values, torch.arange(SIZE))
    assert max(map(len, groups)) <= 2 * SIZE // (SIZE // 16)


def test_new_rows_come_to_the_nearest_cell_and_others_stay() -> None:
    features = clusters()
    first = group(features)
    middles = torch.stack([features[members].mean(dim=0) for members in first.members()])
    features[7], features[100] = middles[3], middles[5]
    again = group(features, first)
    old = torch.ones(SIZE, dtype=torch.bool)
    old[[7, 100]] = False
    assert torch.equal(again.cells[old], first.cells[old])
    assert again.cells[[7, 100]].tolist() == [3, 5]
    assert again.moved == 2


def test_strangers_form_cells_of_their_own() -> None:
    features = clusters()
    first = group(features)
    features[:100] = 30 + random(10, 8, seed=6).repeat(10, 1)
    again = group(features, first)
    strange = set(again.cells[:100].tolist())
    assert len(strange) > 5
    assert strange.isdisjoint(again.cells[100:].tolist())


def test_many_strangers_do_not_multiply_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping.MOST_CELLS", 20)
    features = clusters()
    first = group(features)
    features[:150] = 30 + random(150, 8, seed=6)
    again = group(features, first)
    assert (again.moved, len(again.members()) < 40) == (0, True)


@pytest.mark.parametrize("size", [SIZE - 50, SIZE + 50])
def test_a_memory_may_grow_and_shrink(size: int) -> None:
    first = group(clusters(SIZE))
    features = torch.cat([clusters(SIZE), clusters(SIZE) + 0.01])[:size]
    again = group(features, first)
    assert torch.equal(torch.cat(again.members()).sort().values, torch.arange(size))
    for members in again.members():  # some are cut, but none has members of two
        assert len(set(first.cells[members[members < SIZE]].tolist())) <= 1
    assert again.moved == max(0, size - SIZE)


def test_a_cell_that_many_come_to_is_cut_and_one_that_all_leave_is_gone() -> None:
    features = clusters()
    first = group(features)
    leaving = first.members()[0]
    crowd = torch.cat([leaving, torch.arange(SIZE)[first.cells != 0][:80]])
    features[crowd] = random(1, 8) + 1e-4 * random(len(crowd), 8, seed=2)
    again = group(features, first)
    assert again.moved == len(crowd)
    assert max(len(members) for members in again.members()) <= 2 * 16 + 1
    assert min(len(members) for members in again.members()) > 0


def test_cells_are_found_anew_once_a_quarter_has_moved() -> None:
    features, grouping, moved = clusters(), group(clusters()), []
    for part in torch.split(torch.arange(SIZE), 60):
        features[part] += 0.01
        grouping = group(features, grouping)
        moved.append(grouping.moved)
    assert moved == [60, 120, 0, 60, 120, 0, 60, 120, 0, 60]
    other = clusters() + 1
    assert together(group(other, grouping)) == together(group(other))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_other_bit_is_another_row(dtype: torch.dtype) -> None:
    features = clusters().to(dtype)
    first, other, rows = group(features), features.clone(), torch.arange(SIZE)
    bits = other.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    bits[rows, rows % 8] ^= 1
    assert (group(other).prints != first.prints).all()
    assert len(set(first.prints.tolist())) == SIZE
    assert torch.equal(group(features.T.contiguous().T).prints, first.prints)


def test_rows_of_small_numbers_and_of_other_signs_have_prints_of_their_own() -> None:
    corners = (torch.arange(4096)[:, None] >> torch.arange(12) & 1).double()
    assert len(set(prints_of(corners).tolist())) == 4096
    assert len(set(prints_of(2 * corners - 1).tolist())) == 4096


def test_what_is_no_grouping_is_refused_whatever_the_size() -> None:
    features = clusters(20)
    with pytest.raises(TypeError, match="grouping of an earlier allocation, or None, got list"):
        allocate(torch.ones(20), features, grouping=[0] * 20)  # type: ignore[arg-type]
    assert allocate(torch.ones(20), features).grouping is None  # all pairs: nothing is grouped


def test_answers_are_as_close_with_kept_cells_as_with_fresh_ones() -> None:
    features, ones = clusters(), torch.ones(SIZE)
    before = cells_of(features).cells.grouping
    features[:100] = random(100, 8, seed=4)
    kept, fresh = cells_of(features, before), cells_of(features)
    assert kept.cells.grouping.moved == 100
    exact = build_geometry(features, kind="exact")
    for eps in (0.1, 0.5):
        wanted = exact.apply_kernel(eps, ones)
        off = [(each.apply_kernel(eps, ones) / wanted - 1).abs().mean() for each in (kept, fresh)]
        assert off[0] < 2 * off[1] + 1e-4
