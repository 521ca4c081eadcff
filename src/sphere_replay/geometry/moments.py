"""What cells look like from far away: the first moments of how their members lie.

For members c_b + v of cell b, over v: Σ_b the mean of v v^T, t_b that of v |v|², and the mean and
the variance of |v|². Σ_b is kept as a few directions of its own and a share of what is common to
all cells: Σ_b = E_b^T E_b + s_b R.
"""

import torch
from torch import Tensor
from torch.linalg import vecdot

from sphere_replay.geometry.cells import Cells
from sphere_replay.geometry.scratch import working
from sphere_replay.geometry.threads import in_order
from sphere_replay.numeric import accumulation_dtype

RANK = 8
"""Directions that a cell has of its own."""

TOGETHER = 64
"""Cells that are looked at from at once."""

_ROUNDS = 3
_ROUNDING, _TINY = 1e-5, 1e-30
"""A part of a variance that float32 does not tell from none; and what may be divided by."""


class Moments:
    """Of all cells.

    Attributes:
        factors: E, `[r, c, d]`, orthogonal for each cell.
        share: s, `[c]`, and `common`: R, `[d, d]`.
        covariance: Σ, the mean of Σ_b over memories, `[d, d]`.
        length: Mean of |v|², `[c]`, and `wobble`: its variance.
        lengths: |v|² of each place, `[m]`, and `covered`: v^T Σ v.
        skew: t, `[c, d]`, and `skew_inside`: c_b·t_b, `[c]`.
        seen: D^T Σ_b D for D = c_a - c_b, `[c, c]`: how wide cell b is, seen from that of row a.
    """

    def __init__(self, cells: Cells) -> None:
        count, dim = cells.centers.shape
        rank = min(RANK, dim)
        new = cells.points.new_zeros
        self.factors, self.skew = new(rank, count, dim), new(count, dim)
        self.length, self.wobble = new(count), new(count)
        self.lengths, self.covered = new(2, len(cells.points))

        def measure(batch: Tensor) -> Tensor:
            sizes, spread = cells.sizes[batch], cells.slots(batch).filled(cells.around(batch))
            lengths = spread.square().sum(dim=2)
            mean = lengths.sum(dim=1) / sizes
            inside = torch.arange(lengths.shape[1], device=sizes.device) < sizes[:, None]
            self.lengths[cells.together(batch)[0]], self.length[batch] = lengths[inside], mean
            longer = (lengths - mean[:, None]).mul_(inside)
            self.wobble[batch] = longer.square_().sum(dim=1) / sizes
            self.skew[batch] = (lengths[:, None] @ spread)[:, 0] / sizes[:, None]
            self.factors[:, batch] = _factors(spread, sizes, rank).transpose(0, 1)
            flat = spread.flatten(0, 1)
            return flat.T @ flat

        def cover(batch: Tensor) -> None:
            around = cells.around(batch)
            self.covered[cells.together(batch)[0]] = vecdot(around @ self.covariance, around)

        device = cells.points.device
        parts = in_order(measure, self.batches(), device)
        self.covariance = sum(parts, new(dim, dim)) / len(cells.points)
        for _ in in_order(cover, self.batches(), device):
            pass
        self.skew_inside = (cells.centers * self.skew).sum(dim=1)
        scaled = self.factors * cells.sizes.sqrt()[:, None]
        flat = scaled.reshape(-1, dim)
        self.common = self.covariance - flat.T @ flat / len(cells.points)
        own = self.length - self.factors.square().sum(dim=(0, 2))
        # Where all directions are cells' own, what they have in common is a rounding.
        least = (_ROUNDING * self.covariance.trace()).clamp(min=_TINY)
        self.share = (own / torch.maximum(self.common.trace(), least)).clamp_(min=0)
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


def _factors(deviations: Tensor, sizes: Tensor, rank: int) -> Tensor:
    """The longest directions of Σ, `[b, r, d]`, each as long as the deviations are along it."""
    chosen = torch.arange(rank, device=sizes.device) * sizes[:, None] // rank
    basis = deviations.take_along_dim(chosen[:, :, None], dim=1).mT
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(deviations.mT @ (deviations @ basis)).Q
    # Where members coincide most lengths are zero but for their rounding, with which eigenvectors
    # in float32 may be no numbers.
    inside = (deviations @ basis).to(accumulation_dtype(deviations.device))
    values, vectors = torch.linalg.eigh(inside.mT @ inside / sizes[:, None, None])
    factors: Tensor = (basis @ vectors.to(basis.dtype)) * values.clamp_(min=0).sqrt_()[:, None]
    return factors.mT.to(deviations.dtype)
