"""Squared distances of points in tight clusters, by float32 products alone.

|x - y|² by products loses digits where |x|² is far above it, and centring helps only if there is
one centre. Here every point x = c_a + r is seen from the nearest a of a few anchors c:

    |x - y|² = -2 r·s + g_x,b + g_y,a      for y = c_b + s
    g_x,b    = |r|² + 2 r·(c_a - c_b) + |c_a - c_b|²/2

Close points have near or equal anchors, so that all terms are of the size of the residuals r, s or
of the distance itself: the rounding of the result is relative to these. The table g `[m, k]` is
computed in float64; as g_x,b = Σ_c g_x,c 1[c = b], adding it is one more product, over 2k columns.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.linalg import vecdot

from sphere_replay.geometry.embeddings import UnitRows

MOST_ANCHORS = 64

_ROUNDINGS = 2e5
"""Float32 roundings of the longest residual that an eps must exceed. Kernels are then good to 1e-5
at worst and 1e-6 as a rule, for most residuals are several times shorter."""

_MARGIN = 0.5
"""Anchors are dealt out until sampled points are this much closer than they need to be."""


class AnchoredPoints:
    """Unit rows relative to anchors that suit kernels of scale eps."""

    def __init__(self, points: UnitRows, eps: float) -> None:
        anchors = _choose(points.sample(), _MARGIN * eps / _roundings())
        count, dim = anchors.shape
        products = anchors @ anchors.T
        half_norms = products.diagonal() / 2
        apart = (anchors[:, None] - anchors).square_().sum(dim=2) / 2
        self._residuals = anchors.new_empty(len(points), dim, dtype=torch.float32)
        # The table g beside the points' own anchors, one-hot.
        self._table = anchors.new_zeros(len(points), 2 * count, dtype=torch.float32)

        def relate(rows: slice, block: Tensor) -> Tensor:
            toward = block @ anchors.T
            nearest = (half_norms - toward).argmin(dim=1)
            toward -= products[nearest]
            block -= anchors[nearest]
            norms: Tensor = vecdot(block, block)
            own = toward.gather(1, nearest[:, None])
            self._residuals[rows] = block
            self._table[rows, :count] = norms[:, None] + 2 * (own - toward) + apart[nearest]
            self._table[rows, count:].scatter_(1, nearest[:, None], 1.0)
            return norms.max()

        self.finest_eps = float(torch.stack(points.of_units(relate)).max()) * _roundings()
        """Kernels of smaller scales would show rounding."""

    def squared(self, rows: slice | Tensor, columns: Sequence[slice]) -> Iterator[Tensor]:
        """Squared distances `[len(rows), len(cols)]` for each of several adjacent slices."""
        adjacent = slice(columns[0].start, columns[-1].stop)
        left, right = self._table[rows], self._table[adjacent]
        sums = left @ right.roll(left.shape[1] // 2, dims=1).T
        torch.addmm(sums, self._residuals[rows], self._residuals[adjacent].T, alpha=-2, out=sums)
        for cols in columns:
            yield sums[:, cols.start - adjacent.start : cols.stop - adjacent.start].clamp(min=0)


def _roundings() -> float:
    return _ROUNDINGS * torch.finfo(torch.float32).eps


def _choose(sample: Tensor, close: float) -> Tensor:
    """Centres `[k, d]` of groups of the sample `[n, d]`.

    The point furthest from all anchors becomes the next one, until every squared distance is below
    `close` or there are enough.
    """
    distances = [(sample - sample[0]).square_().sum(dim=1)]
    least = distances[0]
    while len(distances) < MOST_ANCHORS and float(least.max()) > close:
        distances.append((sample - sample[least.argmax()]).square_().sum(dim=1))
        least = torch.minimum(least, distances[-1])
    member = torch.stack(distances).argmin(dim=0)
    groups = torch.nn.functional.one_hot(member, len(distances)).to(sample.dtype)
    return groups.T @ sample / groups.sum(dim=0)[:, None]
