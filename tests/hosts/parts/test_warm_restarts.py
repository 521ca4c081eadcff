"""The learning rates of a memory fit."""

import itertools
import math

import pytest

from sphere_replay.hosts.parts.memory_fit import warm_restart_lr

HIGH, LOW = 0.05, 0.0005
RATES = [warm_restart_lr(epoch, HIGH, LOW) for epoch in range(256)]


def test_the_first_rates_by_hand() -> None:
    known = [0.005, 0.05, 0.05, 0.02525, 0.05, 0.0428, 0.02525, 0.0077]
    assert RATES[:8] == pytest.approx(known, abs=5e-5)
    exact = [HIGH / 10, HIGH, HIGH, (HIGH + LOW) / 2, HIGH]
    assert RATES[:5] == pytest.approx(exact, rel=1e-12)


def test_restarts_are_at_the_powers_of_two_and_nowhere_else() -> None:
    restarts = [epoch for epoch, rate in enumerate(RATES) if rate == pytest.approx(HIGH)]
    assert restarts == [1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize("start", [2, 4, 8, 16, 32, 64, 128])
def test_a_cycle_falls_along_half_a_cosine(start: int) -> None:
    cycle = RATES[start : 2 * start]
    assert all(later < earlier for earlier, later in itertools.pairwise(cycle))
    assert min(cycle) > LOW
    assert cycle[start // 2] == pytest.approx((HIGH + LOW) / 2)
    if start >= 4:
        quarter = LOW + (HIGH - LOW) * (1 + math.sqrt(0.5)) / 2
        assert cycle[start // 4] == pytest.approx(quarter)


def test_256_epochs_end_with_a_cycle() -> None:
    assert min(RATES) == RATES[255] < LOW * 1.02
    assert warm_restart_lr(256, HIGH, LOW) == pytest.approx(HIGH)


def test_rates_scale_with_their_bounds() -> None:
    assert [warm_restart_lr(epoch, 10 * HIGH, 10 * LOW) for epoch in range(256)] == pytest.approx(
        [10 * rate for rate in RATES]
    )
