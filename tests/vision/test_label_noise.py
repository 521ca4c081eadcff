from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sphere_replay.randomness import generator_for
from sphere_replay.vision.noise import LOOKALIKES, NoiseKind, corrupt
from sphere_replay.vision.specs import DATASETS

UNEVEN = torch.arange(10).repeat_interleave(torch.arange(91, 101))


def changed_per_class(clean: Tensor, noisy: Tensor) -> list[int]:
    return clean[noisy != clean].bincount(minlength=10).tolist()


@given(
    sizes=st.lists(st.integers(0, 40), min_size=2, max_size=8),
    rate=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 1000),
)
def test_symmetric_noise_changes_exactly_the_rounded_share_of_each_class(
    sizes: list[int], rate: float, seed: int
) -> None:
    clean = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    noisy = corrupt(clean, rate, len(sizes), generator_for(seed, "corruption"))
    changed = clean[noisy != clean].bincount(minlength=len(sizes)).tolist()
    assert changed == [round(rate * size) for size in sizes]
    assert set(noisy.tolist()) <= set(range(len(sizes)))


def test_replacement_labels_are_uniform_over_the_other_classes() -> None:
    clean = torch.full((45_000,), 3)
    noisy = corrupt(clean, 0.8, 10, generator_for(0, "corruption"))
    counts = noisy[noisy != 3].bincount(minlength=10)
    expected = 36_000 / 9
    others = counts[torch.arange(10) != 3].double()
    statistic = float(((others - expected).square() / expected).sum())
    assert counts[3] == 0
    assert statistic < 26.1  # chi-square with 8 degrees of freedom, 0.1%


def test_bernoulli_noise_has_the_rate_only_on_average() -> None:
    clean = torch.arange(10).repeat(3000)
    generator = generator_for(0, "corruption")
    noisy = corrupt(clean, 0.4, 10, generator, NoiseKind.SYMMETRIC_BERNOULLI)
    changed = changed_per_class(clean, noisy)
    assert abs(sum(changed) / 30_000 - 0.4) < 0.012  # four standard deviations
    assert len(set(changed)) > 1


def test_asymmetric_noise_goes_to_the_lookalike_and_spares_the_rest() -> None:
    generator = generator_for(0, "corruption")
    noisy = corrupt(UNEVEN, 0.4, 10, generator, NoiseKind.ASYMMETRIC, LOOKALIKES["cifar10"])
    expected = [round(0.4 * n) if c in (2, 3, 4, 5, 9) else 0 for c, n in enumerate(range(91, 101))]
    assert changed_per_class(UNEVEN, noisy) == expected
    changed = noisy != UNEVEN
    pairs = set(zip(UNEVEN[changed].tolist(), noisy[changed].tolist(), strict=True))
    assert pairs == {(9, 1), (2, 0), (3, 5), (5, 3), (4, 7)}


def test_cifar100_lookalikes_walk_around_blocks_of_five() -> None:
    lookalikes = LOOKALIKES["cifar100"]
    assert sorted(lookalikes) == sorted(lookalikes.values()) == list(range(100))
    assert [lookalikes[c] for c in (0, 3, 4, 5, 98, 99)] == [1, 4, 0, 6, 99, 95]


@pytest.mark.parametrize("name", LOOKALIKES)
def test_lookalikes_are_other_classes_of_their_dataset(name: str) -> None:
    classes = range(DATASETS[name].num_classes)
    assert all(a in classes and b in classes and a != b for a, b in LOOKALIKES[name].items())


@pytest.mark.parametrize("kind", NoiseKind)
def test_corruption_is_reproducible_pure_and_absent_at_rate_zero(kind: NoiseKind) -> None:
    def noisy(rate: float, seed: int) -> Tensor:
        generator = generator_for(seed, "corruption")
        return corrupt(labels, rate, 10, generator, kind, LOOKALIKES["mnist"])

    labels = UNEVEN.clone()
    assert torch.equal(noisy(0.5, 1), noisy(0.5, 1))
    assert not torch.equal(noisy(0.5, 1), noisy(0.5, 2))
    assert torch.equal(noisy(0.0, 1), UNEVEN)
    assert torch.equal(labels, UNEVEN)


def test_more_noise_changes_more_labels() -> None:
    counts = [
        int((corrupt(UNEVEN, rate, 10, generator_for(0, "corruption")) != UNEVEN).sum())
        for rate in (0.0, 0.2, 0.4, 0.6, 0.8)
    ]
    assert all(low < high for low, high in pairwise(counts))


@pytest.mark.parametrize("rate", [-0.1, 1.0, 40.0, float("nan")])
@pytest.mark.parametrize("kind", NoiseKind)
def test_a_rate_outside_the_unit_interval_is_refused(kind: NoiseKind, rate: float) -> None:
    with pytest.raises(ValueError, match=r"noise must lie in \[0, 1\), got .* 0.4 means 40%"):
        corrupt(UNEVEN, rate, 10, generator_for(0, "corruption"), kind, LOOKALIKES["mnist"])


def test_bad_labels_and_maps_are_refused() -> None:
    generator = generator_for(0, "corruption")
    with pytest.raises(ValueError, match=r"labels must lie in 0..4, got 0..9"):
        corrupt(UNEVEN, 0.2, 5, generator)
    with pytest.raises(ValueError, match=r"int64 of shape \[n\], got torch.float32"):
        corrupt(UNEVEN.float(), 0.2, 10, generator)
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        corrupt(torch.zeros(3, dtype=torch.int64), 0.2, 1, generator)
    with pytest.raises(ValueError, match="3 -> 3 must join two different classes"):
        corrupt(UNEVEN, 0.2, 10, generator, NoiseKind.ASYMMETRIC, {3: 3})
    with pytest.raises(ValueError, match=r"needs a map .* cifar10, cifar100, mnist, digits"):
        corrupt(UNEVEN, 0.2, 10, generator, NoiseKind.ASYMMETRIC)
