"""A first few of what `make fuzz` looks at; `python -m fuzz KIND --case N` looks at one again."""

import pytest

from fuzz import allocations, files


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_allocations(first: int) -> None:
    found = {seed: allocations.look(seed).problems for seed in range(first, first + 100)}
    assert {seed: problems for seed, problems in found.items() if problems} == {}


def test_damaged_files_are_answered_with_a_sentence() -> None:
    found = {seed: files.look(seed).problems for seed in range(25)}
    assert {seed: problems for seed, problems in found.items() if problems} == {}
