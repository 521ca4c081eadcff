"""Drawing memories: which sums are honest, which are not, and what each scheme promises."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sphere_replay import Sphere, allocate
from sphere_replay.allocation.sampling import (
    Scheme,
    draw,
    draw_distinct,
    inclusion_probabilities,
    sample,
)
from sphere_replay.allocation.urn import Urn
from strategies import increments, sampling_weights
from tensors import seeded, standard_error

DISTINCT = [Scheme.SUCCESSIVE, Scheme.SYSTEMATIC]
DRAWS = {Scheme.REPLACEMENT: 12_000, Scheme.SUCCESSIVE: 4_000, Scheme.SYSTEMATIC: 6_000}
WEIGHTS = torch.tensor([0.30, 0.02, 0.10, 0.05, 0.08, 0.01, 0.15, 0.04], dtype=torch.float64)
LOSSES = torch.tensor([2.0, 3.0, 1.0, 2.5, 1.5, 4.0, 2.2, 1.8], dtype=torch.float64)
SKEWED = torch.tensor([0.80, 0.05, 0.05, 0.05, 0.05], dtype=torch.float64)


def drawn_sums(weights: Tensor, losses: Tensor, count: int, scheme: Scheme) -> Tensor:
    """Σ_r coefficient_r * loss_r, many times over."""
    generator = seeded()
    sums = []
    for _ in range(DRAWS[scheme]):
        drawn = sample(weights, count, scheme, generator)
        sums.append(drawn.coefficients @ losses[drawn.indices])
    return torch.stack(sums)


def inclusion_counts(weights: Tensor, count: int, scheme: Scheme, draws: int) -> Tensor:
    """How often each memory was drawn."""
    generator = seeded(1)
    drawn = torch.cat([sample(weights, count, scheme, generator).indices for _ in range(draws)])
    return drawn.bincount(minlength=len(weights)).double()


class TestBias:
    @pytest.mark.parametrize("scheme", [Scheme.REPLACEMENT, Scheme.SYSTEMATIC])
    @pytest.mark.parametrize("count", [2, 4])
    def test_honest_schemes_estimate_the_weighted_loss(self, scheme: Scheme, count: int) -> None:
        sums = drawn_sums(WEIGHTS, LOSSES, count, scheme)
        truth = float(WEIGHTS @ LOSSES)
        error = standard_error(sums)
        assert abs(float(sums.mean()) - truth) < 4 * error
        assert 4 * error < 0.01 * truth, "enough draws to see a bias of one percent"

    def test_successive_draws_are_biased_toward_the_unlikely(self) -> None:
        """Two draws from p, enumerated: the skew and its sign are exactly known."""
        losses = torch.tensor([1.0, 3.0, 3.0, 3.0, 3.0], dtype=torch.float64)
        first = SKEWED / SKEWED.sum()
        then = first[:, None] * first / (1 - first)[:, None]  # first i, then j
        included = first + then.fill_diagonal_(0).sum(dim=0)
        sums = drawn_sums(SKEWED, losses, 2, Scheme.SUCCESSIVE)
        expected = float(SKEWED.sum() / 2 * included @ losses)
        truth, error = float(SKEWED @ losses), standard_error(sums)
        assert abs(float(sums.mean()) - expected) < 4 * error
        assert float(sums.mean()) - truth > 20 * error
        assert expected > 1.2 * truth

    def test_successive_draws_are_unbiased_where_weights_are_equal(self) -> None:
        weights = torch.full((8,), 0.1, dtype=torch.float64)
        sums = drawn_sums(weights, LOSSES, 4, Scheme.SUCCESSIVE)
        assert abs(float(sums.mean() - weights @ LOSSES)) < 4 * standard_error(sums)

    @pytest.mark.parametrize("scheme", [Scheme.REPLACEMENT, Scheme.SYSTEMATIC])
    def test_an_allocation_samples_its_own_weights(self, scheme: Scheme) -> None:
        generator = seeded()
        features = torch.randn(10, 3, generator=generator, dtype=torch.float64)
        delta = torch.randn(10, generator=generator, dtype=torch.float64)
        losses = 1 + torch.rand(10, generator=generator, dtype=torch.float64)
        allocation = allocate(delta, features, Sphere.vision(k_s=2, k_t=4, alpha=0.9))
        assert allocation.effective_sample_size < 9, "far enough from uniform to matter"
        drawn = [allocation.sample(4, scheme.value, generator=generator) for _ in range(2000)]
        sums = torch.stack([one.coefficients @ losses[one.indices] for one in drawn])
        truth = float(allocation.weights @ losses)
        assert abs(float(sums.mean()) - truth) < 4 * standard_error(sums) < 0.02 * truth


class TestInclusion:
    @given(st.data(), sampling_weights())
    @settings(max_examples=150)
    def test_probabilities_are_proportional_up_to_certainty_and_sum_to_the_count(
        self, data: st.DataObject, weights: Tensor
    ) -> None:
        count = data.draw(st.integers(1, len(weights)))
        inclusion = inclusion_probabilities(weights, count)
        assert bool(((inclusion >= 0) & (inclusion <= 1)).all())
        assert float(inclusion.sum()) == pytest.approx(count, rel=1e-9)
        positive = int((weights > 0).sum())
        if positive <= count:
            assert inclusion[weights > 0].tolist() == [1.0] * positive
            rest = (count - positive) / max(1, len(weights) - positive)
            assert inclusion[weights == 0].tolist() == pytest.approx(
                [rest] * (len(weights) - positive)
            )
            return
        assert inclusion[weights == 0].tolist() == [0.0] * (len(weights) - positive)
        open_places = (inclusion < 1) & (weights > 0)
        if open_places.any():
            factors = inclusion[open_places] / weights[open_places]  # c
            assert factors.tolist() == pytest.approx([float(factors[0])] * len(factors), rel=1e-9)
            certain = weights[inclusion == 1]
            assert bool((float(factors[0]) * certain >= 1 - 1e-9).all())

    @pytest.mark.parametrize("count", [1, 3, 6])
    def test_systematic_draws_have_exactly_these_frequencies(self, count: int) -> None:
        draws, inclusion = 4000, inclusion_probabilities(WEIGHTS, count)
        frequency = inclusion_counts(WEIGHTS, count, Scheme.SYSTEMATIC, draws) / draws
        certain = inclusion == 1
        assert bool((frequency[certain] == 1).all())
        spread = (inclusion * (1 - inclusion) / draws).sqrt()
        z = ((frequency - inclusion) / spread)[~certain]
        assert bool((z.abs() < 4).all())
        # The z-scores of a fixed-size draw have mean square one or less: allow four deviations.
        assert float(z.square().sum()) < len(z) + 4 * math.sqrt(2 * len(z))

    def test_a_certain_memory_is_always_there_and_counts_with_its_own_weight(self) -> None:
        generator = seeded()
        assert inclusion_probabilities(SKEWED, 2)[0] == 1
        for _ in range(200):
            drawn = sample(SKEWED, 2, Scheme.SYSTEMATIC, generator)
            place = drawn.indices.tolist().index(0)
            assert float(drawn.coefficients[place]) == float(SKEWED[0])

    def test_which_memories_appear_together_does_not_depend_on_their_places(self) -> None:
        """Without the shuffle, neighbours in storage would exclude each other."""
        generator, weights = seeded(), torch.ones(6)
        pairs = torch.zeros(6, 6)
        for _ in range(3000):
            i, j = sample(weights, 2, Scheme.SYSTEMATIC, generator).indices.sort().values
            pairs[i, j] += 1
        met = pairs[tuple(torch.triu_indices(6, 6, offset=1))]
        assert bool(((met - 200).abs() < 4 * math.sqrt(200)).all())


class TestDraw:
    @pytest.mark.parametrize("scheme", DISTINCT)
    @given(st.data(), sampling_weights())
    @settings(max_examples=100)
    def test_indices_are_distinct_and_prefer_positive_weights(
        self, scheme: Scheme, data: st.DataObject, weights: Tensor
    ) -> None:
        count = data.draw(st.integers(1, len(weights)))
        generator = seeded(data.draw(st.integers(0, 1000)))
        drawn = sample(weights, count, scheme, generator)
        assert len(set(drawn.indices.tolist())) == len(drawn.indices) == count
        assert drawn.coefficients.shape == (count,)
        assert bool(((drawn.indices >= 0) & (drawn.indices < len(weights))).all())
        # A weight of zero is drawn only once the positive ones have run out.
        positive = int((weights > 0).sum())
        assert int((weights[drawn.indices] > 0).sum()) == min(count, positive)

    @given(st.data(), sampling_weights())
    @settings(max_examples=100)
    def test_replacement_never_draws_a_zero_weight(
        self, data: st.DataObject, weights: Tensor
    ) -> None:
        assume(bool((weights > 0).any()))
        count = data.draw(st.integers(1, 30))
        drawn = sample(weights, count, Scheme.REPLACEMENT, seeded())
        assert bool((weights[drawn.indices] > 0).all())
        assert float(drawn.coefficients.sum()) == pytest.approx(float(weights.sum()))

    @pytest.mark.parametrize("scheme", DISTINCT)
    def test_too_few_positive_weights_are_filled_up_uniformly(self, scheme: Scheme) -> None:
        weights = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.0, 0.0], dtype=torch.float64)
        counts = inclusion_counts(weights, 3, scheme, draws=4000)
        assert counts[[1, 3]].tolist() == [4000, 4000]
        assert bool(((counts[[0, 2, 4, 5]] - 1000).abs() < 4 * math.sqrt(750)).all())

    @pytest.mark.parametrize("scheme", list(Scheme))
    def test_no_weight_at_all_draws_uniformly_and_replays_nothing(self, scheme: Scheme) -> None:
        weights = torch.zeros(4)
        counts = inclusion_counts(weights, 2, scheme, draws=2000)
        assert bool(((counts - 1000).abs() < 4 * math.sqrt(1000)).all())
        assert sample(weights, 2, scheme, seeded()).coefficients.tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("scheme", list(Scheme))
    @given(increments(6))
    @settings(max_examples=20)
    def test_the_same_seed_draws_the_same_memories(self, scheme: Scheme, values: Tensor) -> None:
        weights = values.abs()
        one, other = (sample(weights, 4, scheme, seeded(7)) for _ in range(2))
        assert one.indices.tolist() == other.indices.tolist()
        assert one.coefficients.tolist() == other.coefficients.tolist()

    @pytest.mark.parametrize("scheme", list(Scheme))
    def test_other_seeds_draw_other_memories(self, scheme: Scheme) -> None:
        weights = torch.ones(50)
        seen = {tuple(sample(weights, 5, scheme, seeded(s)).indices.tolist()) for s in range(20)}
        assert len(seen) == 20

    def test_an_allocation_draws_as_its_probabilities_say(self) -> None:
        delta = torch.tensor([1.0, -1.0, 0.5, 0.2, -0.3])
        allocation = allocate(delta, torch.eye(5), Sphere(eps_s=1.0, eps_t=1.0, tau=0.1))
        indices = allocation.draw(20_000, generator=seeded())
        frequency = indices.bincount(minlength=5) / 20_000
        p = allocation.probabilities
        assert bool(((frequency - p).abs() < 4 * (p * (1 - p) / 20_000).sqrt()).all())
        distinct = allocation.draw(5, replacement=False, generator=seeded())
        assert sorted(distinct.tolist()) == [0, 1, 2, 3, 4]


class TestErrors:
    @pytest.mark.parametrize("scheme", list(Scheme))
    @pytest.mark.parametrize("count", [0, -1])
    def test_nothing_to_draw_is_an_error(self, scheme: Scheme, count: int) -> None:
        for act in (sample, draw):
            with pytest.raises(ValueError, match=f"at least one memory, not {count}"):
                act(SKEWED, count, scheme, seeded())

    @pytest.mark.parametrize("scheme", DISTINCT)
    def test_more_distinct_memories_than_there_are_is_an_error(self, scheme: Scheme) -> None:
        for act in (sample, draw):
            with pytest.raises(ValueError, match="cannot draw 6 distinct memories from 5"):
                act(SKEWED, 6, scheme, seeded())

    def test_replacement_may_draw_more_than_there_are(self) -> None:
        assert len(sample(SKEWED, 50, Scheme.REPLACEMENT, seeded()).indices) == 50

    @pytest.mark.parametrize("count", [-1, 0, 4])
    def test_inclusion_probabilities_exist_for_feasible_counts_only(self, count: int) -> None:
        with pytest.raises(ValueError, match="memor"):
            inclusion_probabilities(torch.tensor([1.0, 0.0, 0.0]), count)

    def test_an_unknown_scheme_is_an_error(self) -> None:
        allocation = allocate(torch.ones(3), torch.eye(3))
        with pytest.raises(ValueError, match="lottery"):
            allocation.sample(1, "lottery")


class TestLargeMemories:
    """Searching a cumulated sum draws what shuffles and heaps draw."""

    @pytest.fixture(autouse=True)
    def _large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sphere_replay.allocation.sampling.LARGE", 4)

    @pytest.mark.parametrize("scheme", [Scheme.REPLACEMENT, Scheme.SUCCESSIVE])
    def test_frequencies_are_the_same(
        self, scheme: Scheme, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draws = 4000
        searched = inclusion_counts(WEIGHTS, 3, scheme, draws)
        monkeypatch.setattr("sphere_replay.allocation.sampling.LARGE", 1 << 16)
        usual = inclusion_counts(WEIGHTS, 3, scheme, draws)
        noise = (usual + searched).sqrt()
        assert bool(((usual - searched).abs() < 4 * noise).all())

    def test_distinct_draws_are_distinct_and_fill_up(self) -> None:
        weights = torch.tensor([0.0, 1.0, 0.0, 1e-9, 0.0, 0.0])
        for seed in range(20):
            found = draw(weights / weights.sum(), 4, Scheme.SUCCESSIVE, seeded(seed))
            assert len(set(found.tolist())) == 4
            assert {1, 3} <= set(found.tolist())

    def test_an_urn_draws_by_its_weights_however_they_came_about(self) -> None:
        weights = torch.rand(1000, generator=seeded(1))
        changed = Urn(torch.zeros(700), 1000)
        for places in torch.split(torch.randperm(1000, generator=seeded(2)), 90):
            changed.put(places, torch.ones(len(places)))
            changed.put(places, weights[places])
        found = Urn(weights).draw(50_000, distinct=False, generator=seeded(3))
        assert torch.equal(found, changed.draw(50_000, distinct=False, generator=seeded(3)))
        expected = 50_000 * weights / weights.sum()
        off = (found.bincount(minlength=1000) - expected) / expected.sqrt().clamp(min=1)
        assert float(off.abs().max()) < 5
        assert 0.8 < float(off.square().mean()) < 1.2

    def test_what_has_no_weight_is_not_drawn_from_an_urn(self) -> None:
        weights = torch.zeros(1000)
        weights[[3, 500, 501]] = torch.tensor([1e-30, 1.0, 1e30])
        found = Urn(weights).draw(20_000, distinct=False, generator=seeded())
        assert set(found.tolist()) <= {3, 500, 501}
        assert set(Urn(weights).draw(3, distinct=True, generator=seeded()).tolist()) == {
            3,
            500,
            501,
        }
        nothing = Urn(torch.zeros(5), 1000).draw(5, distinct=True, generator=seeded())
        assert sorted(nothing.tolist()) == [0, 1, 2, 3, 4]

    def test_distinct_draws_are_successive_however_likely_a_few_are(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sphere_replay.allocation.urn.SPARE", 0)
        weights = torch.tensor([0.9, 0.04, 0.06], dtype=torch.float64)
        urn = Urn(weights)
        found = torch.stack([urn.draw(2, distinct=True, generator=seeded(s)) for s in range(4000)])
        counts = (3 * found[:, 0] + found[:, 1]).bincount(minlength=9)
        for first, second in ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)):
            share = float(weights[first] * weights[second] / (1 - weights[first]))
            off = abs(int(counts[3 * first + second]) - 4000 * share)
            assert off < 5 * math.sqrt(4000 * share)
        again = urn.draw(1000, distinct=False, generator=seeded())
        assert torch.equal(again, Urn(weights).draw(1000, distinct=False, generator=seeded()))

    def test_few_likely_memories_of_many_are_filled_up_without_looking_at_all(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        weights = torch.zeros(1 << 20)
        weights[5:20] = 1.0
        urn = Urn(weights)
        monkeypatch.setattr(torch, "randperm", lambda *_, **__: pytest.fail("all"))
        found = urn.draw(40, distinct=True, generator=seeded())
        assert sorted(found[:15].tolist()) == list(range(5, 20))
        assert len(set(found.tolist())) == 40

    def test_uniform_distinct_numbers(self) -> None:
        found = torch.stack([draw_distinct(9, 3, seeded(seed)) for seed in range(3000)])
        assert bool((found.sort(dim=1).values.diff(dim=1) > 0).all())
        for place in found.T:
            counts = place.bincount(minlength=9).double()
            assert bool(((counts - 3000 / 9).abs() < 5 * math.sqrt(3000 / 9)).all())
        assert sorted(draw_distinct(9, 20, seeded()).tolist()) == list(range(9))
