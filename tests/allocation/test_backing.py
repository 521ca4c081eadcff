"""Backing of labels by their neighbours: the formula, its properties, its noise estimate."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from sphere_replay import Control, Sphere, allocate
from sphere_replay.allocation import Strength, Votes
from sphere_replay.allocation.backing import (
    back_labels,
    noise_strength,
    permuted_within_classes,
)
from sphere_replay.geometry import (
    DenseGeometry,
    PermutedGeometry,
    Precomputed,
    SquaredEuclidean,
    TiledGeometry,
    build_geometry,
    sums_by_class,
)
from strategies import costs, magnitudes
from tensors import random, random_memories, seeded

BACKED = Sphere(eps_s=0.3, eps_t=1.0, tau=0.2, agreement=0.9)


@st.composite
def labelled_costs(draw: st.DrawFn, min_size: int = 1) -> tuple[Tensor, Tensor, float]:
    """Costs `[m, m]`, labels `[m]` of up to four classes with odd numbers, and a kernel scale."""
    size = draw(st.integers(min_size, 9))
    names = st.sampled_from([-7, 0, 3, 10**12])
    labels = draw(st.lists(names, min_size=size, max_size=size))
    return draw(costs(size)), torch.tensor(labels), draw(magnitudes(-1, 1))


def clusters(
    noise: float, *, size: int = 600, classes: int = 10, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Features of well-separated classes; a share of the labels is another class, any alike."""
    generator = seeded(seed)
    truth = torch.arange(size) % classes
    centers = torch.randn(classes, 32, generator=generator)
    features = centers[truth] + 0.3 * torch.randn(size, 32, generator=generator)
    shift = torch.randint(1, classes, (size,), generator=generator)
    wrong = torch.rand(size, generator=generator) < noise
    return features, torch.where(wrong, (truth + shift) % classes, truth)


class TestFormula:
    @pytest.mark.parametrize("votes", Votes)
    @given(case=labelled_costs())
    @settings(max_examples=100)
    def test_agrees_with_loops(self, votes: Votes, case: tuple[Tensor, Tensor, float]) -> None:
        cost, labels, eps = case
        ours = back_labels(build_geometry(cost, Precomputed()), eps, labels, votes)
        args = cost.tolist(), labels.tolist(), eps, votes is Votes.BALANCED
        assert ours.shares.tolist() == pytest.approx(reference.backing(*args), rel=1e-10)
        assert ours.label_noise == pytest.approx(reference.label_noise(*args), rel=1e-10)

    @pytest.mark.parametrize("votes", Votes)
    @given(case=labelled_costs(), data=st.data())
    @settings(max_examples=60)
    def test_a_share_that_moves_with_its_memory_whatever_labels_are_called(
        self, votes: Votes, case: tuple[Tensor, Tensor, float], data: st.DataObject
    ) -> None:
        cost, labels, eps = case
        usual = back_labels(build_geometry(cost, Precomputed()), eps, labels, votes)
        assert bool(((usual.shares >= 0) & (usual.shares <= 1)).all())
        assert 0 <= usual.label_noise <= 1
        places = torch.tensor(data.draw(st.permutations(range(len(labels)))))
        geometry = build_geometry(cost[places][:, places], Precomputed())
        moved = back_labels(geometry, eps, labels[places], votes)
        torch.testing.assert_close(moved.shares, usual.shares[places])
        renamed = back_labels(build_geometry(cost, Precomputed()), eps, 5 - labels, votes)
        torch.testing.assert_close(renamed.shares, usual.shares)
        for other in (moved, renamed):
            assert other.label_noise == pytest.approx(usual.label_noise)

    def test_dense_and_tiled_agree(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sphere_replay.geometry.tiling.TILE", {"cpu": 7})
        features = random(40, 5, dtype=torch.float64)
        features[11] = features[30]
        labels = torch.randint(4, (40,), generator=seeded(1))
        source = SquaredEuclidean().source(features)
        expected = reference.backing(
            reference.cost_squared(features.tolist()), labels.tolist(), 0.1
        )
        for geometry in (
            DenseGeometry(source),
            TiledGeometry(source, 0),
            TiledGeometry(source, 6000),
        ):
            shares = back_labels(geometry, 0.1, labels).shares
            assert shares.tolist() == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("votes", Votes)
    def test_classes_in_blocks_are_classes_at_once(
        self, votes: Votes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        features = random(50, 4, dtype=torch.float64)
        geometry, labels = build_geometry(features), features.argmax(dim=1)
        whole = back_labels(geometry, 0.2, labels, votes)
        monkeypatch.setattr("sphere_replay.allocation.backing._VOTES_HELD", 50)
        blocks = back_labels(geometry, 0.2, labels, votes)
        torch.testing.assert_close(blocks.shares, whole.shares)
        assert blocks.label_noise == pytest.approx(whole.label_noise)
        assert 0 < whole.label_noise < 1

    def test_faint_neighbours_are_heard_beside_the_memory_itself(self) -> None:
        # In float32, 1 + exp(-40) - 1 is 0: subtracting K_ii would leave no vote at all.
        cost = torch.tensor([[0.0, 40.0, 41.0], [40.0, 0.0, 40.0], [41.0, 40.0, 0.0]])
        geometry = build_geometry(cost, Precomputed())
        shares = back_labels(geometry, 1.0, torch.tensor([0, 1, 0])).shares
        assert shares.tolist() == pytest.approx([torch.e**-1, 0.0, torch.e**-1], rel=1e-4)


class TestDefinitions:
    def shares(self, cost: list[list[float]], labels: list[int], votes: Votes) -> list[float]:
        geometry = build_geometry(torch.tensor(cost), Precomputed())
        found: list[float] = back_labels(geometry, 1.0, torch.tensor(labels), votes).shares.tolist()
        return found

    @pytest.mark.parametrize("votes", Votes)
    def test_nobody_speaks_against_a_memory_without_neighbours(self, votes: Votes) -> None:
        assert self.shares([[0.0]], [3], votes) == [1.0]
        assert self.shares([[0.0, 1e6], [1e6, 0.0]], [3, 4], votes) == [1.0, 1.0]

    @pytest.mark.parametrize("votes", Votes)
    def test_a_class_that_nobody_else_has_is_not_backed(self, votes: Votes) -> None:
        near = [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
        assert self.shares(near, [0, 0, 1], votes)[2] == 0.0

    @pytest.mark.parametrize("votes", Votes)
    def test_unanimous_neighbours_back_in_full(self, votes: Votes) -> None:
        geometry = build_geometry(random(30, 4))
        backing = back_labels(geometry, 0.5, torch.full((30,), 4), votes)
        assert backing.shares.tolist() == [1.0] * 30
        assert backing.label_noise == 0.0

    def test_balanced_votes_do_not_follow_the_crowd(self) -> None:
        cost = 1 - torch.eye(12)
        labels = torch.tensor([0] * 8 + [1] * 4)
        geometry = build_geometry(cost, Precomputed())
        plain = back_labels(geometry, 1.0, labels, Votes.PLAIN).shares
        balanced = back_labels(geometry, 1.0, labels, Votes.BALANCED).shares
        assert plain.tolist() == pytest.approx([1.0] * 8 + [3 / 8] * 4)
        assert balanced.tolist() == pytest.approx([1.0] * 12)


class TestNoise:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize(
        ("noise", "estimate", "strength"), [(0.0, 0.0, 0.0), (0.4, 0.4 / 0.9, 1.0), (0.9, 1.0, 0.0)]
    )
    def test_strength_follows_what_neighbourhoods_can_tell(
        self, noise: float, estimate: float, strength: float, seed: int
    ) -> None:
        # 90% of wrong labels among ten classes, any alike, are random labels.
        features, labels = clusters(noise, seed=seed)
        recipe = Sphere.calibrated(strength="noise")
        allocation = allocate(random(600), features, recipe, labels=labels)
        assert allocation.label_noise == pytest.approx(estimate, abs=0.07)
        assert allocation.agreement == pytest.approx(0.9 * strength, abs=0.15)

    def test_clean_clusters_are_left_exactly_as_they_are(self) -> None:
        features, labels = clusters(0.0)
        recipe = Sphere.calibrated(strength="noise")
        allocation = allocate(random(600), features, recipe, labels=labels)
        without = allocate(random(600), features, replace(recipe, agreement=0))
        assert (allocation.label_noise, allocation.agreement) == (0.0, 0.0)
        assert torch.equal(allocation.weights, without.weights)

    def test_wrong_labels_lose_their_backing(self) -> None:
        features, clean = clusters(0.0)
        _, labels = clusters(0.4)
        backing = allocate(random(600), features, Sphere.calibrated(), labels=labels).backing
        assert backing is not None
        assert float(backing[labels == clean].mean()) > 0.95
        assert float(backing[labels != clean].mean()) < 0.2

    def test_strength_is_a_smooth_hump(self) -> None:
        assert [noise_strength(n) for n in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0, 0.75, 1, 0.75, 0]


class TestWeights:
    @pytest.fixture
    def memories(self) -> tuple[Tensor, Tensor, Tensor]:
        features, delta = random_memories(35, 4, seed=5)
        return features, delta + 0.2, torch.randint(3, (35,), generator=seeded(1))

    @pytest.mark.parametrize("control", [None, *Control])
    @pytest.mark.parametrize("agreement", [0.5, 1.0])
    def test_are_multiplied_in_every_control(
        self, memories: tuple[Tensor, Tensor, Tensor], control: Control | None, agreement: float
    ) -> None:
        features, delta, labels = memories
        recipe = replace(BACKED, control=control, agreement=agreement)
        ours = allocate(delta, features, recipe, labels=labels, generator=seeded())
        geometry = build_geometry(features)
        backing = back_labels(geometry, 0.3, labels).shares
        if control is Control.PERMUTED:
            moved = PermutedGeometry(geometry, torch.randperm(35, generator=seeded()))
            backing = back_labels(moved, 0.3, labels).shares
        if control is Control.BACKING_PERMUTED:
            control, backing = None, permuted_within_classes(backing, labels, seeded())
        plain = replace(BACKED, control=control, agreement=0)
        base = allocate(delta, features, plain, generator=seeded())
        weights, mass, probabilities = reference.backed(
            base.weights.tolist(), backing.tolist(), agreement
        )
        assert ours.backing is not None
        assert ours.agreement == agreement
        torch.testing.assert_close(ours.backing, backing)
        assert ours.weights.tolist() == pytest.approx(weights, rel=1e-10)
        assert ours.mass == pytest.approx(mass, rel=1e-10)
        assert ours.probabilities.tolist() == pytest.approx(probabilities, rel=1e-10)

    @pytest.mark.parametrize("recipe", [Sphere.vision(), Sphere.instruct(), Sphere.coding()])
    def test_of_the_paper_do_not_look_at_labels(
        self, memories: tuple[Tensor, Tensor, Tensor], recipe: Sphere
    ) -> None:
        features, delta, labels = memories
        with_labels = allocate(delta, features, recipe, labels=labels)
        without = allocate(delta, features, recipe)
        assert torch.equal(with_labels.weights, without.weights)
        assert with_labels.mass == without.mass
        assert with_labels.backing is not None
        assert (without.backing, without.label_noise, without.agreement) == (None, None, 0.0)

    def test_mass_may_fall_to_nothing(self) -> None:
        labels = torch.arange(5)
        allocation = allocate(random(5), random(5, 3), replace(BACKED, agreement=1), labels=labels)
        assert allocation.mass == 0.0
        assert allocation.probabilities.tolist() == pytest.approx([0.2] * 5)
        kept = allocate(-torch.ones(5), random(5, 3), BACKED, labels=labels)
        assert kept.mass == pytest.approx(0.1 * 0.5)

    def test_results_keep_the_increments_precision(self) -> None:
        backing = allocate(random(5), random(5, 3), BACKED, labels=torch.arange(5)).backing
        assert backing is not None
        assert backing.dtype == torch.float32


class TestBackingPermuted:
    def test_each_class_keeps_its_values(self) -> None:
        values, labels = random(50), torch.randint(4, (50,), generator=seeded(1))
        dealt = permuted_within_classes(values, labels, seeded(2))
        assert not torch.equal(dealt, values)
        for label in range(4):
            kept, before = dealt[labels == label], values[labels == label]
            assert sorted(kept.tolist()) == sorted(before.tolist())

    def test_every_order_is_as_likely(self) -> None:
        generator = seeded()
        labels = torch.tensor([1, 0, 1, 1, 0])
        values = torch.arange(5.0)
        first = [int(permuted_within_classes(values, labels, generator)[0]) for _ in range(3000)]
        for value in (0, 2, 3):
            assert first.count(value) == pytest.approx(1000, abs=4 * 26)

    def test_needs_something_to_permute_and_a_generator(self) -> None:
        with pytest.raises(ValueError, match="set agreement above 0"):
            Sphere.vision(control="backing-permuted")
        recipe = replace(BACKED, control=Control.BACKING_PERMUTED)
        with pytest.raises(ValueError, match="backing-permuted control shuffles backing: pass gen"):
            allocate(random(4), random(4, 2), recipe, labels=torch.arange(4))


class TestErrors:
    def test_agreement_needs_labels(self) -> None:
        with pytest.raises(ValueError, match="pass labels="):
            allocate(random(4), torch.full((4, 2), torch.nan), Sphere.calibrated())

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (torch.zeros(3, dtype=torch.int64), "4 increments but 3 labels"),
            (torch.zeros(4), r"int64 class numbers, got torch\.float32; use \.long"),
            (torch.zeros(4, dtype=torch.int32), r"got torch\.int32"),
            (torch.zeros(4, 2, dtype=torch.int64), r"shape \[m\].*got \[4, 2\]; use .*\.argmax"),
        ],
    )
    def test_labels_that_are_none(self, labels: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            allocate(random(4), random(4, 2), labels=labels)

    def test_labels_in_a_list(self) -> None:
        with pytest.raises(TypeError, match=r"labels must be a torch\.Tensor, got list"):
            allocate(random(2), random(2, 2), labels=[0, 1])  # type: ignore[arg-type]  # the mistake under test

    @pytest.mark.parametrize("agreement", [-0.1, 1.1, torch.nan])
    def test_agreement_outside_the_unit_interval(self, agreement: float) -> None:
        with pytest.raises(ValueError, match=r"agreement must lie in \[0, 1\]"):
            Sphere.calibrated(agreement=agreement)

    def test_unknown_names_are_told_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="unknown votes 'loud'; known: plain, balanced"):
            Sphere.calibrated(votes="loud")
        with pytest.raises(ValueError, match="unknown strength 'auto'; known: fixed, noise"):
            Sphere.calibrated(strength="auto")
        assert Sphere.calibrated(strength="noise").strength is Strength.NOISE


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("votes", Votes)
def test_many_classes_are_voted_on_in_one_pass_where_the_kernel_is_local(
    votes: Votes, permuted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping.LEAST_MEMBERS", 8)
    features, labels = clusters(0.3, size=900, classes=60)
    features[:20] = features[0]
    local, exact = build_geometry(features, kind="cells"), build_geometry(features)
    if permuted:
        places = torch.randperm(900, generator=seeded(5))
        local, exact = PermutedGeometry(local, places), PermutedGeometry(exact, places)
    eps = 0.02
    wanted = back_labels(exact, eps, labels, votes)
    in_blocks = back_labels(local, eps, labels, votes)
    monkeypatch.setattr("sphere_replay.allocation.backing._VOTES_HELD", 1)
    monkeypatch.setattr(
        "sphere_replay.allocation.backing.votes_cast", lambda *_: pytest.fail("blocks")
    )
    in_one = back_labels(local, eps, labels, votes)
    for found in (in_blocks, in_one):
        torch.testing.assert_close(found.shares, wanted.shares, rtol=1e-4, atol=1e-4)
        assert found.label_noise == pytest.approx(wanted.label_noise, abs=1e-3)


def test_many_classes_are_voted_on_block_by_block_where_far_memories_have_a_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.grouping.LEAST_MEMBERS", 8)
    monkeypatch.setattr("sphere_replay.allocation.backing._VOTES_HELD", 1)
    features, labels = clusters(0.3, size=900, classes=60)
    wide = build_geometry(features, kind="low-rank")
    assert sums_by_class(wide, 1.0, labels, 60) is None
    found = back_labels(wide, 1.0, labels).shares
    wanted = back_labels(build_geometry(features), 1.0, labels).shares
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)
