"""A first few of what `make fuzz` looks at; `python -m fuzz KIND --case N` looks at one again."""

import pytest

from fuzz import allocations, files


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_allocations(first: int) -> None:
    found = {seed: allocations.look(seed).problems for seed in range(first, first + 100)}
    assert {seed: problems for seed, problems in found.items() if problems} == {}


@pytest.mark.parametrize(
    "seed", [30069132, 30223294, 30267374, 30328252, 30367746, 30465271, 50044584]
)
def test_what_was_once_found_is_found_no_more(seed: int) -> None:
    assert allocations.look(seed).problems == []


def test_damaged_files_are_answered_with_a_sentence() -> None:
    found = {seed: files.look(seed).problems for seed in range(25)}
    assert {seed: problems for seed, problems in found.items() if problems} == {}
