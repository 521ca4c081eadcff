"""Reservoir admission: exact probabilities, and decisions of seed and stream position alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from sphere_replay.memory import Memory, Offer, Reservoir
from tensors import seeded


def batches(count: int, batch: int) -> list[Tensor]:
    return [torch.arange(i, min(i + batch, count)) for i in range(0, count, batch)]


def kept_after(count: int, capacity: int, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Final contents, and the slot each row was given."""
    memory = Memory(capacity, generator=seeded(seed))
    history = [memory.add(position=rows) for rows in batches(count, batch)]
    return memory["position"].clone(), torch.cat(history)


def test_inclusion_frequencies_are_uniform_over_the_stream() -> None:
    capacity, count, seeds = 10, 60, 1500
    hits = torch.zeros(count)
    slots = torch.zeros(capacity, count)
    for seed in range(seeds):
        kept, _ = kept_after(count, capacity, batch=13, seed=seed)
        hits[kept] += 1
        slots[torch.arange(capacity), kept] += 1
    expected = seeds * capacity / count
    # Hits of a fixed-size sample have variance K/n (1 - K/n) and correlation -1/(n - 1), so that
    # this sum is chi-square with n - 1 degrees of freedom, as for a multinomial.
    statistic = float((hits - expected).square().sum()) / expected / (1 - capacity / count)
    statistic *= (count - 1) / count
    assert stats.chi2.sf(statistic, count - 1) > 1e-3
    assert stats.chi2.cdf(statistic, count - 1) > 1e-3
    # A later row is equally likely to sit in any slot.
    late = slots[:, capacity:].sum(1)
    assert stats.chisquare(late.numpy()).pvalue > 1e-3


def test_every_prefix_is_sampled_uniformly() -> None:
    seeds, capacity = 4000, 2
    hits = torch.zeros(3, 5)
    for seed in range(seeds):
        memory = Memory(capacity, generator=seeded(seed))
        for row in range(5):
            memory.add(position=torch.tensor([row]))
            if row >= 2:
                hits[row - 2, memory["position"]] += 1
    for seen, counts in zip((3, 4, 5), hits, strict=True):
        rate = capacity / seen
        error = (counts[:seen] / seeds - rate).abs().max()
        assert error < 4.5 * (rate * (1 - rate) / seeds) ** 0.5
        assert counts[seen:].sum() == 0


@given(
    capacity=st.integers(1, 20),
    count=st.integers(1, 120),
    batch=st.integers(1, 130),
    seed=st.integers(0, 10_000),
)
def test_decisions_do_not_depend_on_batch_size(
    capacity: int, count: int, batch: int, seed: int
) -> None:
    kept, history = kept_after(count, capacity, batch, seed)
    alone, slots = kept_after(count, capacity, 1, seed)
    assert torch.equal(kept, alone)
    # Within a batch an overwritten row is reported as -1; where it is kept, the slot agrees.
    assert torch.equal(history[history >= 0], slots[history >= 0])


@given(capacity=st.integers(1, 6), count=st.integers(1, 40), seed=st.integers(0, 10_000))
def test_decisions_are_vitters(capacity: int, count: int, seed: int) -> None:
    """Row by row in plain Python, from the same uniforms."""
    source = seeded(seed)
    slots: list[int] = [-1] * capacity
    for n in range(count):
        uniform = float(torch.rand(1, dtype=torch.float64, generator=source))
        j = n if n < capacity else int(uniform * (n + 1))
        if j < capacity:
            slots[j] = n
    kept, _ = kept_after(count, capacity, batch=7, seed=seed)
    assert kept.tolist() == slots[:count]


def test_decisions_ignore_every_other_generator() -> None:
    expected, _ = kept_after(300, 20, batch=16, seed=5)
    memory = Memory(20, generator=seeded(5))
    other = seeded(5)
    before = torch.get_rng_state()
    for rows in batches(300, 16):
        memory.add(position=rows)
        torch.rand(11, generator=other)
    assert torch.equal(memory["position"], expected)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again, _ = kept_after(300, 20, batch=16, seed=5)
    assert torch.equal(again, expected)


def test_exactly_one_uniform_is_drawn_per_row() -> None:
    source = seeded(1)
    memory = Memory(5, generator=source)
    for size in (3, 1, 40):
        memory.add(y=torch.zeros(size))
    reference = seeded(1)
    torch.rand(44, dtype=torch.float64, generator=reference)
    assert torch.equal(source.get_state(), reference.get_state())


@pytest.mark.parametrize("seen", [10, 63, 64, 1000, 2**31 + 5])
def test_the_largest_uniform_stays_in_range(seen: int) -> None:
    top = torch.tensor([1 - 2**-53], dtype=torch.float64)
    offer = Offer({}, uniforms=top, count=1, seen=seen, filled=10, capacity=seen + 1)
    full = Offer({}, uniforms=top, count=1, seen=seen, filled=10, capacity=10)
    assert Reservoir().place(offer).tolist() == [seen]
    assert Reservoir().place(full).tolist() == [-1]
    bottom = Offer({}, uniforms=top * 0, count=1, seen=seen, filled=10, capacity=10)
    assert Reservoir().place(bottom).tolist() == [0]
