"""Summaries over seeds: mean, the two standard deviations, and paired gains with their interval."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

SeedT = TypeVar("SeedT")


class Spread(StrEnum):
    """Which standard deviation a table reports; the paper uses both."""

    POPULATION = "population"
    """sqrt(Σ (x - mean)² / n): the spread of exactly these seeds; needs two."""
    SAMPLE = "sample"
    """sqrt(Σ (x - mean)² / (n - 1)): an estimate for all seeds; needs two."""

    @property
    def formula(self) -> str:
        """The definition in one line, for the foot of a table."""
        divisor = "n" if self is Spread.POPULATION else "(n - 1)"
        return f"{self.value} standard deviation, sqrt(Σ (x - mean)² / {divisor}), n seeds"


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
    treated: Mapping[SeedT, float], baseline: Mapping[SeedT, float], *, confidence: float = 0.95
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
    half = student_t_quantile((1 + confidence) / 2, pairs - 1) * deviation / math.sqrt(pairs)
    return PairedDifference(center, (center - half, center + half), pairs)


def student_t_quantile(probability: float, degrees: float) -> float:
    """The t with P(T <= t) = probability, T Student-distributed, by bisection."""
    if not 0 < probability < 1:
        raise ValueError(f"probability must lie strictly between 0 and 1, got {probability}")
    if not 0 < degrees < math.inf:
        raise ValueError(f"degrees of freedom must be positive and finite, got {degrees}")
    tail = min(probability, 1 - probability)
    low, high = 0.0, 1.0
    while _student_t_tail(high, degrees) > tail:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if _student_t_tail(middle, degrees) > tail:
            low = middle
        else:
            high = middle
    return -high if probability < 0.5 else high


def _student_t_tail(t: float, degrees: float) -> float:
    """P(T > t) = I_x(ν/2, 1/2) / 2 with x = ν / (ν + t²), for t >= 0."""
    square = t * t
    total = degrees + square
    return _incomplete_beta(degrees / 2, 0.5, degrees / total, square / total) / 2


def _incomplete_beta(a: float, b: float, x: float, complement: float) -> float:
    """Regularized incomplete beta I_x(a, b); the complement 1 - x comes from the caller, exact."""
    if x <= 0:
        return 0.0
    if complement <= 0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, its mirror image is fast
        return 1 - _incomplete_beta(b, a, complement, x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log(complement) - log_beta) / a
    return front / _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1 + d_1/(1 + d_2/(1 + ...)) of the incomplete beta, by the modified Lentz method."""
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, 100_000):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + term * d) or tiny)
        c = (1 + term / c) or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            return value
    raise ArithmeticError(f"the incomplete beta fraction did not converge at a={a}, b={b}, x={x}")


def _check(values: Sequence[float]) -> None:
    if not values:
        raise ValueError("no values to summarize: at least one seed must have a result")
    for position, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"value {position} of {len(values)} is {value}; expected a number")
