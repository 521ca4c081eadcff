"""A recipe: everything that decides how increments become weights, as one immutable value."""

import math
from dataclasses import dataclass

from sphere_replay.allocation.backing import Strength, Votes
from sphere_replay.allocation.controls import Control
from sphere_replay.allocation.scales import (
    CalibratedScales,
    FixedScales,
    NeighborScales,
    QuantileScales,
    Scales,
    SpreadScales,
    TemperatureRule,
)
from sphere_replay.geometry import Cosine, Distance, Euclidean, SquaredEuclidean
from sphere_replay.validation import check_fraction

PAPER_D0 = 0.524
"""Median cosine distance to the eighth neighbour over the paper's training prompts."""


@dataclass(frozen=True, init=False)
class Sphere:
    """Distance, scales, blend and, for ablations, the control that replaces a part of the method.

    `Sphere(eps_s=1.0, eps_t=2.0, tau=0.1)` fixes the scales by hand; `vision()`, `instruct()` and
    `coding()` are the paper's settings for its three domains. `calibrated()` goes beyond the paper,
    as do `agreement`, `votes`, `strength` and `leave_one_out`, whose defaults are the paper's.

    Attributes:
        scales: Policy for eps_s, eps_T and T.
        distance: Cost between features.
        alpha: Share of the risk-driven weights in the blend with uniform replay, in [0, 1].
        control: One of the ablations, or None for the full method.
        agreement: a in [0, 1]: weights are multiplied by 1 - a + a backing. Above 0, `allocate`
            needs labels.
        votes: How neighbours' labels are counted, `plain` or `balanced`.
        strength: `fixed`, or `noise`: a follows the label noise that the memory shows.
        leave_one_out: The consensus is that of the others, without the memory itself.
    """

    scales: Scales
    distance: Distance
    alpha: float
    control: Control | None
    agreement: float
    votes: Votes
    strength: Strength
    leave_one_out: bool

    def __init__(
        self,
        scales: Scales | None = None,
        *,
        eps_s: float | None = None,
        eps_t: float | None = None,
        tau: float | None = None,
        distance: Distance | None = None,
        alpha: float = 0.5,
        control: Control | str | None = None,
        agreement: float = 0.0,
        votes: Votes | str = Votes.PLAIN,
        strength: Strength | str = Strength.FIXED,
        leave_one_out: bool = False,
    ) -> None:
        if scales is None:
            if eps_s is None or eps_t is None or tau is None:
                raise ValueError("give either scales=... or all of eps_s, eps_t and tau")
            scales = FixedScales(eps_s, eps_t, tau)
        elif not (eps_s is None and eps_t is None and tau is None):
            raise ValueError("eps_s, eps_t and tau belong to fixed scales: leave out scales=...")
        check_fraction(alpha=alpha, agreement=agreement)
        control = None if control is None else Control(control)
        if control is Control.BACKING_PERMUTED and agreement == 0:
            raise ValueError("the backing-permuted control permutes backing: set agreement above 0")
        object.__setattr__(self, "scales", scales)
        object.__setattr__(self, "distance", distance or SquaredEuclidean())
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "control", control)
        object.__setattr__(self, "agreement", agreement)
        object.__setattr__(self, "votes", Votes(votes))
        object.__setattr__(self, "strength", Strength(strength))
        object.__setattr__(self, "leave_one_out", leave_one_out)

    @classmethod
    def vision(
        cls,
        k_s: int = 5,
        k_t: int = 25,
        t_frac: float = 0.5,
        *,
        alpha: float = 0.5,
        control: Control | str | None = None,
    ) -> "Sphere":
        """Noisy-label vision: squared distances of unit features, neighbour scales."""
        scales = NeighborScales(k_s, k_t, t_frac)
        return cls(scales, distance=SquaredEuclidean(), alpha=alpha, control=control)

    @classmethod
    def instruct(
        cls,
        eps_s: float = 0.2,
        eps_t: float = 0.5,
        c_beta: float = 1.0,
        *,
        alpha: float = 0.5,
        control: Control | str | None = None,
    ) -> "Sphere":
        """Instruction tuning: distances over the pool's median, temperature from the spread."""
        scales = SpreadScales(eps_s, eps_t, c_beta)
        return cls(scales, distance=Euclidean(), alpha=alpha, control=control)

    @classmethod
    def coding(
        cls,
        d0: float | None = PAPER_D0,
        *,
        fraction: float = 0.25,
        alpha: float = 0.5,
        control: Control | str | None = None,
    ) -> "Sphere":
        """Code RL: cosine distance over d0, temperature from the 95th percentile.

        Features are prompt embeddings centred once over all training prompts
        (`geometry.center_embeddings`), d0 their `geometry.neighbor_distance_scale`. With d0=None
        the scored pool stands for the training set: it is centred and gives its own d0.
        """
        scales = QuantileScales(eps_s=1 / math.log(10), eps_t=1.0, fraction=fraction)
        distance = Cosine(d0=d0, center=d0 is None)
        return cls(scales, distance=distance, alpha=alpha, control=control)

    @classmethod
    def calibrated(
        cls,
        neighbors: float = 8.0,
        far: float = 40.0,
        fraction: float = 0.5,
        *,
        rule: TemperatureRule | str = TemperatureRule.INCREMENTS,
        distance: Distance | None = None,
        alpha: float = 0.5,
        agreement: float = 1.0,
        votes: Votes | str = Votes.BALANCED,
        strength: Strength | str = Strength.NOISE,
        leave_one_out: bool = False,
        control: Control | str | None = None,
    ) -> "Sphere":
        """Beyond the paper: scales by wanted N_eff, and labels that their neighbours back.

        Distance and temperature are those of `vision()`. The defaults were chosen on development
        seeds, apart from those that results are reported on, and for replay at unit mass.
        `allocate` needs labels unless `agreement` is 0.
        """
        return cls(
            CalibratedScales(neighbors, far, fraction, rule),
            distance=distance,
            alpha=alpha,
            control=control,
            agreement=agreement,
            votes=votes,
            strength=strength,
            leave_one_out=leave_one_out,
        )
