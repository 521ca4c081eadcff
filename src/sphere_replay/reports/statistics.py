"""Summaries over seeds: mean, the two standard deviations, and paired gains with their interval."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sphere_replay.extras import require
from sphere_replay.runs.table import Spread

PairT = TypeVar("PairT")


@dataclass(frozen=True)
class PairedDifference:
    """Mean of treated - baseline over common seeds."""

    mean: float
    interval: tuple[float, float] | None
    """Student's t confidence interval of the mean; None for a single pair, which has no spread."""
    pairs: int


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, correctly rounded whatever the order of the values."""
    _check(values)
    return float(statistics.mean(values))


def standard_deviation(values: Sequence[float], spread: Spread) -> float | None:
    """The named standard deviation; None for a single value, of which 0 would say too much."""
    _check(values)
    if len(values) == 1:
        return None
    kind = statistics.pstdev if spread is Spread.POPULATION else statistics.stdev
    return float(kind(values))


def paired_difference(
    treated: Mapping[PairT, float], baseline: Mapping[PairT, float], *, confidence: float = 0.95
) -> PairedDifference | None:
    """Difference of two methods over the seeds they share; None if they share none.

    The interval is mean ± t(n - 1) s / sqrt(n) with s the sample standard deviation of the n
    differences: what the two runs of a seed have in common cancels.
    """
    differences = [treated[seed] - baseline[seed] for seed in treated if seed in baseline]
    if not differences:
        return None
    center = mean(differences)
    deviation = standard_deviation(differences, Spread.SAMPLE)
    if deviation is None:
        return PairedDifference(center, None, 1)
    pairs = len(differences)
    quantile = float(require("scipy.stats", "report").t.ppf((1 + confidence) / 2, pairs - 1))
    half = quantile * deviation / math.sqrt(pairs)
    return PairedDifference(center, (center - half, center + half), pairs)


def _check(values: Sequence[float]) -> None:
    if not values:
        raise ValueError("no values to summarize: at least one seed must have a result")
    for position, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"value {position} of {len(values)} is {value}; expected a number")
