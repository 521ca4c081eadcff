"""Batches by length: complete, within their budget, with little padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sphere_replay.language import padding_waste, token_batches
from sphere_replay.randomness import generator_for


@given(lengths=st.lists(st.integers(1, 600), min_size=1, max_size=80), budget=st.integers(1, 5000))
@settings(max_examples=80)
def test_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = token_batches(lengths, budget)
    assert sorted(torch.cat(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        widest = max(lengths[index] for index in batch.tolist())
        assert len(batch) == 1 or widest * len(batch) <= budget
    assert padding_waste(lengths, batches) <= 0.1 + 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_realistic_lengths_waste_little_in_few_batches(seed: int) -> None:
    # Sentence pairs next to reviews cut off at 512 tokens: a median of 75, a long tail.
    spread = torch.empty(512).log_normal_(4.3, 0.9, generator=generator_for(seed, "lengths"))
    lengths = spread.long().clamp(5, 512)
    batches = token_batches(lengths, 4096)
    unordered = list(torch.arange(512).split(32))  # type: ignore[no-untyped-call]  # torch's
    assert padding_waste(lengths, batches) < 0.1
    assert padding_waste(lengths, unordered) > 0.5
    least = int(lengths.sum()) / 4096
    assert len(batches) < 2 * least + 10


def test_equal_lengths_fill_the_budget() -> None:
    assert [len(batch) for batch in token_batches([8] * 10, 32)] == [4, 4, 2]
    assert padding_waste([8] * 10, token_batches([8] * 10, 32)) == 0


def test_waste_is_the_share_of_padding() -> None:
    assert padding_waste([4, 2, 1], [torch.tensor([0, 1]), torch.tensor([2])]) == pytest.approx(
        2 / 9
    )
    assert padding_waste([], []) == 0


def test_a_budget_is_needed() -> None:
    with pytest.raises(ValueError, match="at least one token, got 0"):
        token_batches([3], 0)
