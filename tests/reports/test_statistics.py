"""Means, both standard deviations, and paired intervals against those of scipy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sphere_replay.reports.statistics import mean, paired_difference, standard_deviation
from sphere_replay.runs.table import Spread


def test_both_standard_deviations_by_hand() -> None:
    values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]
    assert mean(values) == 5
    assert standard_deviation(values, Spread.POPULATION) == 2
    assert standard_deviation(values, Spread.SAMPLE) == pytest.approx(math.sqrt(32 / 7), abs=1e-15)


def test_a_single_value_has_no_sample_deviation() -> None:
    assert standard_deviation([0.3], Spread.POPULATION) is None
    assert standard_deviation([0.3], Spread.SAMPLE) is None


def test_equal_values_have_no_spread_at_all() -> None:
    assert mean([0.1] * 3) == 0.1
    assert standard_deviation([0.1] * 3, Spread.SAMPLE) == 0


@given(st.permutations([0.1, 1e16, -1e16, 0.7, 3.3]))
def test_the_mean_does_not_depend_on_the_order(values: list[float]) -> None:
    assert mean(values) == pytest.approx((0.1 + 0.7 + 3.3) / 5, abs=1e-15)


def test_paired_difference_agrees_with_scipy() -> None:
    treated = {0: 0.5, 1: 0.7, 2: 0.4, 3: 0.9, 7: 0.1}
    baseline = {3: 0.6, 2: 0.45, 1: 0.5, 0: 0.4, 8: 0.9}
    paired = paired_difference(treated, baseline)
    reference = stats.ttest_rel([0.5, 0.7, 0.4, 0.9], [0.4, 0.5, 0.45, 0.6])
    interval = reference.confidence_interval(0.95)
    assert paired is not None
    assert paired.pairs == 4
    assert paired.mean == pytest.approx(0.1375)
    assert paired.interval == pytest.approx((interval.low, interval.high), abs=1e-10)


def test_what_seeds_share_cancels() -> None:
    baseline = {seed: 0.1 * seed for seed in range(5)}
    paired = paired_difference({seed: x + 0.25 for seed, x in baseline.items()}, baseline)
    assert paired is not None
    assert paired.interval == pytest.approx((0.25, 0.25), abs=1e-15)


def test_one_pair_has_no_interval_and_none_has_no_difference() -> None:
    paired = paired_difference({1: 0.75, 2: 1.0}, {1: 0.5})
    assert paired is not None
    assert (paired.mean, paired.interval, paired.pairs) == (0.25, None, 1)
    assert paired_difference({1: 0.7}, {2: 0.5}) is None


def test_nothing_and_nan_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one seed"):
        mean([])
    with pytest.raises(ValueError, match="value 1 of 2 is nan"):
        standard_deviation([0.5, math.nan], Spread.POPULATION)


def test_each_kind_names_its_divisor() -> None:
    assert "population" in Spread.POPULATION.formula
    assert "/ n)" in Spread.POPULATION.formula
    assert "/ (n - 1))" in Spread.SAMPLE.formula
