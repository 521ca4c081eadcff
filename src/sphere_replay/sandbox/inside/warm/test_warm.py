"""Tests that the server runs once by itself, so that forks find all of pytest loaded and warm."""

import unittest
import unittest.mock

import pytest


@pytest.fixture
def number() -> int:
    """A value by way of a fixture."""
    return 1


@pytest.mark.parametrize("other", [1, 2])
def test_numbers(number: int, other: int) -> None:
    """Fails for the second, so that failures are warm as well."""
    assert number == other


def test_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two helpers that tests use most."""
    monkeypatch.setenv("WARM", "yes")
    assert pytest.approx(0.3) == 0.1 + 0.2
    with pytest.raises(ZeroDivisionError):
        _ = 1 / 0


class TestUnit(unittest.TestCase):
    """Tests of unittest go another way through pytest."""

    def test_mock(self) -> None:
        """A mock and an assertion."""
        assert unittest.mock.Mock(return_value=1)() == 1
