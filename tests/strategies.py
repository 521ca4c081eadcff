"""Hypothesis strategies shared by the tests: scored memories as awkward as real ones.

Everything is float64, so that a test compares mathematics and not precision.
"""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """A transport problem: risks `[m]`, costs `[m, m]`, kernel scale and temperature."""

    risk: Tensor
    cost: Tensor
    eps_t: float
    temperature: float


@dataclass(frozen=True)
class Scored:
    """Increments `[m]` of memories with given pairwise costs `[m, m]`, and the scales to use."""

    increments: Tensor
    cost: Tensor
    eps_s: float
    eps_t: float
    tau: float


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    """Ordinary floats of an interval."""
    return st.floats(low, high, allow_nan=False, allow_subnormal=False)


def magnitudes(low: int, high: int) -> st.SearchStrategy[float]:
    """Numbers spread evenly over the decades 10^low to 10^high."""
    return numbers(low, high).map(lambda exponent: float(10.0**exponent))


def vectors(size: int, low: float = -5.0, high: float = 5.0) -> st.SearchStrategy[Tensor]:
    """Vectors `[size]` with entries of an interval."""
    entries = st.lists(numbers(low, high), min_size=size, max_size=size)
    return entries.map(lambda values: torch.tensor(values, dtype=torch.float64))


@st.composite
def features(draw: st.DrawFn, min_size: int = 1, max_size: int = 12) -> Tensor:
    """Feature rows `[m, d]`: fresh, repeated, nearly repeated, rescaled or zero."""
    size, dim = draw(st.integers(min_size, max_size)), draw(st.integers(2, 4))
    rows = [draw(vectors(dim, -1, 1))]
    while len(rows) < size:
        earlier = rows[draw(st.integers(0, len(rows) - 1))]
        match draw(st.sampled_from(["fresh", "fresh", "same", "near", "longer", "zero"])):
            case "fresh":
                rows.append(draw(vectors(dim, -1, 1)))
            case "same":
                rows.append(earlier)
            case "near":
                rows.append(earlier + 1e-2 * draw(vectors(dim, -1, 1)))
            case "longer":
                rows.append(4 * earlier)
            case _:
                rows.append(torch.zeros(dim, dtype=torch.float64))
    return torch.stack(rows)


@st.composite
def increments(draw: st.DrawFn, size: int, min_decade: int = -6, max_decade: int = 6) -> Tensor:
    """Loss changes `[size]`: of mixed or one sign, a lone spike, all the same; of any scale."""
    base = draw(vectors(size, -1, 1))
    base[base.abs() < 1e-280] = 0.0  # an allocation takes 1e-290 for zero, and this is scaled
    match draw(st.sampled_from(["mixed", "mixed", "rising", "falling", "spike", "constant"])):
        case "rising":
            base = base.abs()
        case "falling":
            base = -base.abs()
        case "spike":
            base = -0.01 * base.abs()
            base[draw(st.integers(0, size - 1))] = 1.0
        case "constant":
            base = base[:1].repeat(size)
    return base * draw(magnitudes(min_decade, max_decade))


@st.composite
def scored_features(
    draw: st.DrawFn, min_size: int = 1, max_size: int = 12
) -> tuple[Tensor, Tensor]:
    """Increments `[m]` and features `[m, d]`."""
    rows = draw(features(min_size, max_size))
    return draw(increments(len(rows))), rows


@st.composite
def costs(draw: st.DrawFn, size: int) -> Tensor:
    """Symmetric, non-negative `[size, size]` with a zero diagonal; no triangle inequality."""
    matrix = torch.zeros(size, size, dtype=torch.float64)
    i, j = torch.triu_indices(size, size, offset=1)
    entries = st.lists(st.one_of(st.just(0.0), numbers(0.01, 5)), min_size=len(i), max_size=len(i))
    matrix[i, j] = torch.tensor(draw(entries), dtype=torch.float64)
    return matrix + matrix.T


@st.composite
def problems(draw: st.DrawFn, min_size: int = 1, max_size: int = 7) -> Problem:
    """Transport problems with risks of any sign."""
    size = draw(st.integers(min_size, max_size))
    return Problem(
        risk=draw(vectors(size)),
        cost=draw(costs(size)),
        eps_t=draw(magnitudes(-1, 1)),
        temperature=draw(magnitudes(-2, 1)),
    )


@st.composite
def scored(draw: st.DrawFn, min_size: int = 1, max_size: int = 8) -> Scored:
    """Increments of order one on arbitrary costs."""
    size = draw(st.integers(min_size, max_size))
    return Scored(
        increments=draw(increments(size, -1, 1)),
        cost=draw(costs(size)),
        eps_s=draw(magnitudes(-1, 1)),
        eps_t=draw(magnitudes(-1, 1)),
        tau=draw(magnitudes(-1, 1)),
    )


@st.composite
def sampling_weights(draw: st.DrawFn, min_size: int = 1, max_size: int = 12) -> Tensor:
    """Non-negative weights `[m]`, some of them zero, over up to twelve decades."""
    size = draw(st.integers(min_size, max_size))
    entry = st.one_of(st.just(0.0), numbers(0.1, 1), magnitudes(-6, 6))
    return torch.tensor(draw(st.lists(entry, min_size=size, max_size=size)), dtype=torch.float64)
