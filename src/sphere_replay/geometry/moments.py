"""What cells look like from far away: the first moments of how their members lie.

For members c_b + v of cell b, over v: Σ_b the mean of v v^T, t_b that of v |v|², and the mean and
the variance of |v|². Σ_b is kept as a few directions of its own and a share of what is common to
all cells: Σ_b = E_b^T E_b + s_b R.
"""

import torch
from torch import Tensor

from sphere_replay.geometry.cells import Cells
from sphere_replay.geometry.scratch import working
from sphere_replay.geometry.threads import in_order

RANK = 8
"""Directions that a cell has of its own."""

TOGETHER = 32
"""Cells that are looked at from at once."""

_ROUNDS = 3


class Moments:
    """Of all cells.

    Attributes:
        factors: E, `[r, c, d]`, orthogonal for each cell.
        share: s, `[c]`, and `common`: R, `[d, d]`.
        covariance: The mean of Σ_b over memories, `[d, d]`.
        length: Mean of |v|², `[c]`, and `wobble`: its variance.
        longer: |v|² minus that mean, of each place, `[m]`.
        skew: t, `[c, d]`, and `skew_inside`: c_b·t_b, `[c]`.
        seen: D^T Σ_b D for D = c_a - c_b, `[c, c]`: how wide cell b is, seen from that of row a.
    """

    def __init__(self, cells: Cells) -> None:
        count, dim = cells.centers.shape
        rank = min(RANK, dim)
        new = cells.points.new_zeros
        self.factors, self.skew = new(rank, count, dim), new(count, dim)
        self.length, self.wobble, self.longer = new(count), new(count), new(len(cells.points))

        def measure(cell: int) -> Tensor:
            deviations = cells.deviations(cell)
            lengths = deviations.square().sum(dim=1)
            self.length[cell] = lengths.mean()
            self.longer[cells.spans[cell]] = lengths - self.length[cell]
            self.wobble[cell] = lengths.var(correction=0)
            self.skew[cell] = lengths @ deviations / len(lengths)
            self.factors[:, cell] = _factors(deviations, rank)
            return deviations.T @ deviations

        parts = in_order(measure, range(count), cells.points.device)
        self.covariance = sum(parts, new(dim, dim)) / len(cells.points)
        self.skew_inside = (cells.centers * self.skew).sum(dim=1)
        scaled = self.factors * cells.sizes.sqrt()[:, None]
        flat = scaled.reshape(-1, dim)
        self.common = self.covariance - flat.T @ flat / len(cells.points)
        own = self.length - self.factors.square().sum(dim=(0, 2))
        self.share = (own / self.common.trace().clamp(min=1e-30)).clamp_(min=0)
        self._offsets = (self.factors * cells.centers).sum(dim=2)
        self.seen = new(count, count)
        centers = cells.centers
        blurred = centers @ self.common
        lengths = (blurred * centers).sum(dim=1)

        def look(rows: Tensor) -> None:
            apart = lengths[rows, None] + lengths - 2 * blurred[rows] @ centers.T
            self.seen[rows] = self.along(cells, rows).square_().sum(dim=1) + self.share * apart

        for _ in in_order(look, self.batches(), cells.points.device):
            pass

    def batches(self) -> list[Tensor]:
        """All cells, a few adjacent ones at a time."""
        return list(
            torch.split(torch.arange(len(self.length), device=self.length.device), TOGETHER)
        )

    def along(self, cells: Cells, rows: Tensor) -> Tensor:
        """E_b (c_a - c_b) of the given a and all b, `[n, r, c]`; the next call's, too."""
        own, factors = cells.centers[rows], self.factors.flatten(0, 1)
        out = working("along", (len(rows), len(factors)), own.dtype, own.device)
        along = torch.mm(own, factors.T, out=out)
        return along.view(len(rows), *self._offsets.shape).sub_(self._offsets)


def _factors(deviations: Tensor, rank: int) -> Tensor:
    """The longest directions of Σ, `[r, d]`, each as long as the deviations are along it."""
    size, dim = deviations.shape
    few = min(rank, size)
    result = deviations.new_zeros(rank, dim)
    basis = deviations[torch.arange(few) * size // few].T
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(deviations.T @ (deviations @ basis)).Q
    inside = deviations @ basis
    values, vectors = torch.linalg.eigh(inside.T @ inside / size)
    result[:few] = ((basis @ vectors) * values.clamp_(min=0).sqrt()).T
    return result
