"""Scale policies: how wide a neighbourhood is, and how much risk outweighs how much distance.

A policy gives the kernel scales eps_s (aggregation) and eps_T (transport) from the geometry alone,
and then the temperature T = tau * eps_T from the increments. The paper uses three policies, one per
domain; `FixedScales` is the plain Algorithm 1, `CalibratedScales` goes beyond the paper.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from sphere_replay.geometry import Geometry
from sphere_replay.numeric import median, percentile
from sphere_replay.validation import Choice, check_counts, check_fraction, check_positive

EPS_FLOOR = 1e-12
"""Smallest kernel scale. It binds where half of the memories coincide with their k_s neighbours;
the kernel then averages over coincident memories only."""


ROUNDING = 1e-6
"""Relative differences below this are the float32 kernel's, not the risks'."""

FLOORS = {"eps_floor": EPS_FLOOR, "rounding": ROUNDING}
"""By the names that a run's identity knows them by."""


class Temperature(NamedTuple):
    """T, and the running risk scale to hand over at the next rescoring (None without memory)."""

    value: float
    running_scale: float | None = None


@runtime_checkable
class Scales(Protocol):
    """Chooses eps_s and eps_T from a geometry and T from the increments."""

    def bandwidths(self, geometry: Geometry) -> tuple[float, float]:
        """(eps_s, eps_T)."""
        ...

    def temperature(
        self, increments: Tensor, support: Tensor, eps_t: float, running_scale: float | None
    ) -> Temperature:
        """T from the increments δ and the support [Sδ]_+; T = 0 means that nothing is at risk."""
        ...


@dataclass(frozen=True)
class FixedScales:
    """eps_s, eps_T and tau as given."""

    eps_s: float
    eps_t: float
    tau: float

    def __post_init__(self) -> None:
        check_positive(eps_s=self.eps_s, eps_t=self.eps_t)
        if not 0 <= self.tau < float("inf"):
            raise ValueError(f"tau must be finite and not negative, got {self.tau}")
        if not self.tau * self.eps_t < float("inf"):
            raise ValueError(
                f"the temperature tau * eps_t is no number: {self.tau} * {self.eps_t}; make tau or "
                "eps_t smaller"
            )

    def bandwidths(self, geometry: Geometry) -> tuple[float, float]:
        """As given."""
        return max(self.eps_s, EPS_FLOOR), max(self.eps_t, EPS_FLOOR)

    def temperature(
        self, increments: Tensor, support: Tensor, eps_t: float, running_scale: float | None
    ) -> Temperature:
        """T = tau eps_T."""
        return Temperature(self.tau * eps_t)


@dataclass(frozen=True)
class NeighborScales:
    """Vision: kernel scales are median neighbour radii, the temperature follows recent increments.

    eps_s = median_i r_i(k_s), eps_T = max(median_i r_i(k_T), eps_s),
    T = t_frac * EMA_decay(P95([δ]_+)), the average starting at its first value; 95 stands for
    `quantile`.
    """

    k_s: int = 5
    k_t: int = 25
    t_frac: float = 0.5
    decay: float = 0.9
    quantile: float = 0.95

    def __post_init__(self) -> None:
        check_counts(k_s=self.k_s, k_t=self.k_t)
        check_positive(t_frac=self.t_frac)
        check_fraction(decay=self.decay, quantile=self.quantile)

    def bandwidths(self, geometry: Geometry) -> tuple[float, float]:
        """Medians of the distances to the k_s-th and k_T-th neighbour."""
        near, far = geometry.neighbor_radius([self.k_s, self.k_t])
        eps_s = max(median(near), EPS_FLOOR)
        return eps_s, max(median(far), eps_s)

    def temperature(
        self, increments: Tensor, support: Tensor, eps_t: float, running_scale: float | None
    ) -> Temperature:
        """A fraction of the running percentile of positive increments."""
        current = percentile(increments.clamp(min=0), self.quantile)
        if running_scale:  # an average of zero has seen no risk yet: it starts with the first
            current = self.decay * running_scale + (1 - self.decay) * current
        return Temperature(self.t_frac * current, current)


@dataclass(frozen=True)
class SpreadScales:
    """Instruction tuning: tau = c_beta * std([Sδ]_+) / eps_T, so T = c_beta * std([Sδ]_+).

    The standard deviation is the population's, which is defined for a single memory too.
    """

    eps_s: float = 0.2
    eps_t: float = 0.5
    c_beta: float = 1.0

    def __post_init__(self) -> None:
        check_positive(eps_s=self.eps_s, eps_t=self.eps_t, c_beta=self.c_beta)

    def bandwidths(self, geometry: Geometry) -> tuple[float, float]:
        """As given."""
        return max(self.eps_s, EPS_FLOOR), max(self.eps_t, EPS_FLOOR)

    def temperature(
        self, increments: Tensor, support: Tensor, eps_t: float, running_scale: float | None
    ) -> Temperature:
        """c_beta times the spread of the supported risk."""
        spread = _population_std(support)
        # Equal risks leave a spread of mere rounding; it must not pass for a temperature.
        negligible = spread <= ROUNDING * float(support.max())
        return Temperature(0.0 if negligible else self.c_beta * spread)


@dataclass(frozen=True)
class QuantileScales:
    """Code RL: tau = fraction * P95([Sδ]_+); 95 stands for `quantile`."""

    eps_s: float
    eps_t: float = 1.0
    fraction: float = 0.25
    quantile: float = 0.95

    def __post_init__(self) -> None:
        check_positive(eps_s=self.eps_s, eps_t=self.eps_t, fraction=self.fraction)
        check_fraction(quantile=self.quantile)

    def bandwidths(self, geometry: Geometry) -> tuple[float, float]:
        """As given."""
        return max(self.eps_s, EPS_FLOOR), max(self.eps_t, EPS_FLOOR)

    def temperature(
        self, increments: Tensor, support: Tensor, eps_t: float, running_scale: float | None
    ) -> Temperature:
        """eps_T times a fraction of the supported risk's percentile."""
        return Temperature(self.fraction * percentile(support, self.quantile) * eps_t)


class TemperatureRule(Choice):
    """Where a temperature comes from, given the `fraction` f of `CalibratedScales`."""

    INCREMENTS = "increments"
    """T = f * EMA(P95([δ]_+)), as in `NeighborScales`."""
    SPREAD = "spread"
    """T = f * std([Sδ]_+), as in `SpreadScales`."""
    QUANTILE = "quantile"
    """T = f * P95([Sδ]_+), as in `QuantileScales` at eps_T = 1."""


_TEMPERATURES: dict[TemperatureRule, Callable[[float, float], Scales]] = {
    TemperatureRule.INCREMENTS: lambda fraction, decay: NeighborScales(
        t_frac=fraction, decay=decay
    ),
    TemperatureRule.SPREAD: lambda fraction, decay: SpreadScales(c_beta=fraction),
    TemperatureRule.QUANTILE: lambda fraction, decay: QuantileScales(1.0, fraction=fraction),
}


@dataclass(frozen=True)
class CalibratedScales:
    """Beyond the paper: kernels as wide as it takes to have a wanted number of neighbours.

    eps_s and eps_T are such that the median N_eff over a sample of the memories is `neighbors` and
    `far`. However much distances concentrate, a neighbourhood then stays a neighbourhood. Fewer
    memories than wanted count all alike; where more coincide than wanted, eps is the floor; where
    many scales give what is wanted, as among pairs of twins, it is the least of them.

    Attributes:
        neighbors: Wanted N_eff of the aggregation kernel, the memory itself included.
        far: Wanted N_eff of the transport kernel.
        fraction: Factor f of the temperature rule.
        rule: Which policy's temperature to take.
        decay: Of the running average, for the rule that has one.
    """

    neighbors: float = 8.0
    far: float = 40.0
    fraction: float = 0.5
    rule: TemperatureRule | str = TemperatureRule.INCREMENTS
    decay: float = 0.9

    def __post_init__(self) -> None:
        if not 1 <= self.neighbors <= self.far < float("inf"):
            raise ValueError(
                f"N_eff is at least 1, and transport reaches no less far than aggregation: got "
                f"neighbors={self.neighbors}, far={self.far}; expected 1 <= neighbors <= far"
            )
        check_positive(fraction=self.fraction)
        check_fraction(decay=self.decay)
        object.__setattr__(self, "rule", TemperatureRule(self.rule))

    def bandwidths(self, geometry: Geometry) -> tuple[float, float]:
        """The scales at which the median N_eff is the wanted one."""
        near, far = geometry.kernel_scales([self.neighbors, self.far])
        eps_s = max(near, EPS_FLOOR)
        return eps_s, max(far, eps_s)

    def temperature(
        self, increments: Tensor, support: Tensor, eps_t: float, running_scale: float | None
    ) -> Temperature:
        """That of the policy the rule is named after; eps_T has no part in it."""
        policy = _TEMPERATURES[TemperatureRule(self.rule)](self.fraction, self.decay)
        return policy.temperature(increments, support, 1.0, running_scale)


def _population_std(values: Tensor) -> float:
    """Standard deviation over all values (division by m), safe at any magnitude."""
    magnitude = float(values.abs().max())
    return magnitude * float((values / magnitude).std(correction=0)) if magnitude > 0 else 0.0
