"""What an allocation is: the weights, and everything on the way to them."""

from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from sphere_replay.allocation.backing import Votes
from sphere_replay.allocation.sampling import Sample, Scheme, draw, sample
from sphere_replay.geometry import (
    ApproximateGeometry,
    Geometry,
    Kept,
    Neighborhood,
    PermutedGeometry,
    exact_rows,
)
from sphere_replay.geometry.calibration import effective_sizes
from sphere_replay.geometry.threads import undisturbed
from sphere_replay.numeric import effective_sample_size, median, spread

_TYPICAL, _TYPICAL_AT_ONCE = 64, 8
"""Memories whose exact N_eff stands for all, and rows of them that are held at a time."""


@dataclass(frozen=True)
class Certificate:
    """A bound on what approximate kernels may have changed, see `certificate`."""

    total_variation: float
    """Of p from that of exact kernels at the same scales, temperature and agreement: at most."""
    confidence: float
    """With this probability over the sample."""
    rows: int
    """Memories in the sample, whose exact kernel rows were computed."""


@dataclass(frozen=True, eq=False)
class Allocation:
    """Replay weights of m memories. All vectors are `[m]`, in the increments' precision."""

    weights: Tensor
    """w̄ = (1 - alpha)/m + alpha w_SC: the coefficient of each memory's loss. With agreement a > 0
    it is multiplied by 1 - a + a backing."""
    mass: float
    """s_w = Σ w̄: how strongly to replay altogether. In [1 - alpha, 1]; with agreement a > 0 it may
    fall to (1 - a)(1 - alpha)."""
    probabilities: Tensor
    """p = w̄ / s_w; uniform where the mass is zero."""
    consensus: Tensor
    """Sδ: increments averaged over their neighbourhoods, signed."""
    support: Tensor
    """v = [Sδ]_+: the risk that neighbours support."""
    target: Tensor
    """q*: where transport sends uniform mass."""
    sensitivity: Tensor
    """w_SC = S^T(q* ⊙ 1[Sδ > 0]): the gradient of the transport value in the increments."""
    value: float
    """V_OT(v): the risk after transport."""
    eps_s: float
    """Scale of the aggregation kernel."""
    eps_t: float
    """Scale of the transport kernel."""
    temperature: float
    """T = tau eps_T."""
    running_scale: float | None
    """Pass it to the next `allocate()` if the scale policy has a memory; None if it has none."""
    geometry: Geometry | None = field(repr=False)
    """Distances between the memories; None for S = I, where every memory stands alone."""
    backing: Tensor | None = None
    """How far the neighbourhood backs each label, in [0, 1]; None without labels."""
    label_noise: float | None = None
    """The label noise that the memory shows (see `Backing.label_noise`); None without labels."""
    agreement: float = 0.0
    """a: how strongly backing counted in the weights."""
    votes: Votes = Votes.PLAIN
    """How the votes were counted that backing is made of."""
    error: Certificate | None = None
    """How far the probabilities may be from exact ones. None if they are exact, or if the control
    matches or shuffles the whole result, which no sample of rows can tell about."""

    def __len__(self) -> int:
        return len(self.weights)

    def __repr__(self) -> str:
        certified = "" if self.error is None else f", TV within {self.error.total_variation:.2%}"
        return (
            f"Allocation({len(self)} memories, ESS {self.effective_sample_size:.1f}, "
            f"mass {self.mass:.3g}, eps_S {self.eps_s:.3g}, eps_T {self.eps_t:.3g}, "
            f"T {self.temperature:.3g}{certified})"
        )

    def to(self, dtype: torch.dtype) -> "Allocation":
        """The same allocation with its vectors in another precision."""
        return replace(
            self,
            weights=self.weights.to(dtype),
            probabilities=self.probabilities.to(dtype),
            consensus=self.consensus.to(dtype),
            support=self.support.to(dtype),
            target=self.target.to(dtype),
            sensitivity=self.sensitivity.to(dtype),
            backing=None if self.backing is None else self.backing.to(dtype),
        )

    @property
    def grouping(self) -> Kept | None:
        """Pass it to the next `allocate()` if most features stay the same; None if all is exact."""
        if isinstance(self.geometry, ApproximateGeometry | PermutedGeometry):
            return self.geometry.kept
        return None

    @property
    def effective_sample_size(self) -> float:
        """ESS = 1 / Σ p²: how many memories share the replay."""
        return effective_sample_size(self.probabilities)

    @property
    def effective_neighbors(self) -> Tensor:
        """N_eff = 1 / Σ_j S_ij²: how many neighbours back each consensus; computed when asked.

        The memory itself is one of them, whether or not the recipe leaves it out.
        """
        return self._neighborhood.effective_size.to(self.weights.dtype)

    @property
    def typical_neighbors(self) -> float:
        """The median N_eff; of approximate kernels that of a few memories, by exact rows."""
        rows = None if self.geometry is None else exact_rows(self.geometry)
        if rows is None:
            return median(self.effective_neighbors)
        some, everybody = spread(len(self), _TYPICAL), slice(0, len(self))
        sizes = [
            effective_sizes(rows.costs(each, everybody), self.eps_s)
            for each in torch.split(some.to(rows.order.device), _TYPICAL_AT_ONCE)
        ]
        return median(torch.cat(sizes))

    @property
    def radius(self) -> Tensor:
        """r_i = Σ_j S_ij C_ij: how far away they are on average; computed when asked."""
        return self._neighborhood.radius.to(self.weights.dtype)

    def draw(
        self,
        count: int,
        *,
        replacement: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Indices `[count]` of memories to replay.

        With replacement they are independent draws from p. Without, they are distinct, drawn one
        after the other from what is left of p, as in the paper's vision and instruction runs.
        """
        scheme = Scheme.REPLACEMENT if replacement else Scheme.SUCCESSIVE
        return draw(self.probabilities, count, scheme, generator)

    def sample(
        self,
        count: int,
        scheme: Scheme | str = Scheme.REPLACEMENT,
        *,
        generator: torch.Generator | None = None,
    ) -> Sample:
        """Indices with the coefficients that turn their losses into the weighted replay loss.

        See `Scheme` for which of the schemes estimate Σ w̄_i loss_i without bias.
        """
        return sample(self.weights, count, Scheme(scheme), generator)

    @cached_property
    def _neighborhood(self) -> Neighborhood:
        if self.geometry is None:
            ones = torch.ones_like(self.weights)
            return Neighborhood(ones, ones, torch.zeros_like(ones))
        work = partial(self.geometry.neighborhood, self.eps_s)
        return undisturbed(work, len(self), self.geometry.device)
