"""Two Gaussians on a line, and the three parts of a memory that two of them make."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture
from torch import Tensor

from sphere_replay.hosts.parts import mixture
from sphere_replay.hosts.parts.mixture import NoSplitError, in_unit_interval, split_in_two
from sphere_replay.hosts.parts.parted_fit import LEAST, partition


def clusters(low: int, high: int, seed: int = 0) -> Tensor:
    """`low` numbers around 0.1, then `high` around 0.8."""
    source = torch.Generator().manual_seed(seed)
    return torch.cat(
        [
            0.1 + 0.03 * torch.randn(low, generator=source),
            0.8 + 0.08 * torch.randn(high, generator=source),
        ]
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_low_group_is_the_one_with_the_smaller_mean(seed: int, reverse: bool) -> None:
    """Whatever the order of the data: components come sorted."""
    values = clusters(40, 25, seed)
    expected = torch.arange(65) < 40
    if reverse:
        values, expected = values.flip(0), expected.flip(0)
    split = split_in_two(values)
    assert torch.equal(split.is_low, expected)
    assert split.means == pytest.approx((0.1, 0.8), abs=0.05)
    assert split.converged


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=60))
def test_posteriors_are_probabilities_and_the_low_mean_is_more_likely_low(
    numbers: list[float],
) -> None:
    values = torch.tensor(numbers, dtype=torch.float64)
    if len(set(numbers)) == 1:
        with pytest.raises(NoSplitError, match="same value"):
            split_in_two(values)
        return
    split = split_in_two(values)
    assert split.low.shape == values.shape
    assert bool(((split.low >= 0) & (split.low <= 1)).all())
    assert split.means[0] <= split.means[1]
    # Order carries no meaning.
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(3))
    again = split_in_two(values[order])
    torch.testing.assert_close(again.low, split.low[order], rtol=1e-6, atol=1e-6)


def test_it_is_the_mixture_that_scikit_learn_finds() -> None:
    values = clusters(60, 40, 7)
    own = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=1)
    own.fit(values[:, None].double().numpy())
    low = int(np.argmin(own.means_[:, 0]))
    expected = own.predict_proba(values[:, None].double().numpy())[:, low]
    np.testing.assert_allclose(split_in_two(values).low.numpy(), expected, atol=1e-6)


def global_states() -> tuple[list[int], list[int]]:
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002  # only watched
    return torch.get_rng_state().tolist(), legacy["state"]["key"].tolist()


def test_global_generators_are_not_touched() -> None:
    before = global_states()
    split_in_two(clusters(30, 30))
    assert global_states() == before


def test_a_mixture_that_does_not_converge_keeps_its_last_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixture, "MAX_ITERATIONS", 1)
    split = split_in_two(clusters(40, 25))
    assert not split.converged
    assert torch.equal(split.is_low, torch.arange(65) < 40)


@pytest.mark.parametrize(
    ("values", "message"),
    [([], "at least 2 examples, got 0"), ([1.0], "got 1"), ([2.0] * 5, "same value 2")],
)
def test_where_there_is_nothing_to_split_it_says_why(values: list[float], message: str) -> None:
    with pytest.raises(NoSplitError, match=message):
        split_in_two(torch.tensor(values))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_numbers_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        split_in_two(torch.tensor([0.0, bad, 1.0]))


def test_normalizing_leaves_equal_values_at_zero() -> None:
    assert in_unit_interval(torch.tensor([2.0, 4.0, 3.0])).tolist() == [0.0, 1.0, 0.5]
    assert in_unit_interval(torch.full((3,), 7.0)).tolist() == [0.0] * 3


# Partition.


def memory(clean: int, sure: int, unsure: int) -> tuple[Tensor, Tensor]:
    """Losses and logits: first the clean ones, then high losses, sure and unsure of themselves."""
    losses = clusters(clean, sure + unsure)
    logits = torch.zeros(clean + sure + unsure, 4)
    logits[:, 0] = 0.05 * torch.arange(len(logits)) / len(logits)
    logits[clean : clean + sure, 1] += 6.0
    return losses, logits


def test_parts_by_hand() -> None:
    parts = partition(*memory(20, 8, 12))
    assert parts.clean.tolist() == list(range(20))
    assert parts.ambiguous.tolist() == list(range(20, 28))  # high loss, but sure
    assert parts.incorrect.tolist() == list(range(28, 40))
    assert bool((parts.trust[:20] > 0.5).all())
    assert bool((parts.trust[20:] <= 0.5).all())


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(6, 60), st.floats(0.1, 4))
def test_parts_are_complete_disjoint_and_large_enough(seed: int, count: int, power: float) -> None:
    source = torch.Generator().manual_seed(seed)
    losses = torch.rand(count, generator=source) ** power
    logits = 3 * torch.randn(count, 5, generator=source)
    try:
        parts = partition(losses, logits)
    except NoSplitError:  # some part is too small: see below
        assume(False)
    indices = torch.cat([parts.clean, parts.ambiguous, parts.incorrect])
    assert sorted(indices.tolist()) == list(range(count))
    assert min(len(parts.clean), len(parts.ambiguous), len(parts.incorrect)) >= LEAST
    unsure = 1 - logits.softmax(1).amax(1)
    assert unsure[parts.ambiguous].mean() < unsure[parts.incorrect].mean()
    assert losses[parts.clean].mean() < losses[indices[len(parts.clean) :]].mean()


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((2, 8, 8), "fewer than 3 clean memories"),
        ((20, 1, 1), "fewer than 3 memories of high loss"),
        ((20, 2, 8), "fewer than 3 ambiguous memories"),
        ((20, 8, 2), "fewer than 3 incorrect memories"),
    ],
)
def test_small_parts_are_refused_by_name(sizes: tuple[int, int, int], reason: str) -> None:
    with pytest.raises(NoSplitError, match=reason):
        partition(*memory(*sizes))


def test_equal_losses_and_equal_doubts_have_no_parts() -> None:
    losses, logits = memory(20, 8, 8)
    with pytest.raises(NoSplitError, match="no two groups of losses"):
        partition(torch.ones_like(losses), logits)
    with pytest.raises(NoSplitError, match="no two groups of uncertainties"):
        partition(losses, torch.zeros_like(logits))


def test_a_mixture_that_does_not_converge_is_used_and_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert partition(*memory(20, 8, 12)).converged
    monkeypatch.setattr(mixture, "MAX_ITERATIONS", 1)
    parts = partition(*memory(20, 8, 12))
    assert not parts.converged
    assert len(parts.clean) == 20
