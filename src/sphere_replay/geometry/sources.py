"""Where blocks of pairwise distances come from: points through a GEMM, or a matrix as it stands.

Distances by GEMM, |a|² + |b|² - 2ab, cancel for points that are close. Three ways answer this:

- *fast*: float32 points, centred before they are rounded, which makes the cancelling norms small.
  The error is a few float32 roundings of these, harmless while the kernel scale eps is far above.
- *anchored*: float32 points as seen from the nearest of several centres, for tight clusters; see
  `geometry.anchors`.
- *sharp*: float64 products, and pairs so close that even these cancel are recomputed from their
  differences, so coincident points are at distance exactly zero. float64 features and square roots
  (infinitely steep at zero) always take this one.

A source starts as fast as it may and is sharpened once a scale asks for it.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sphere_replay.geometry.anchors import MOST_ANCHORS, AnchoredPoints
from sphere_replay.geometry.embeddings import UnitRows, lengths
from sphere_replay.geometry.threads import in_order, slices
from sphere_replay.numeric import accumulation_dtype

_TOLERATED_ROUNDINGS = 6e5
"""Float32 roundings of the largest squared norm that an eps must exceed for fast distances. Row
sums of kernels are then good to 1e-5, and mostly to 1e-6."""

_ANCHORED_ABOVE = 512
"""Points from which on anchors are worth their choice; float64 products of fewer are cheap."""

_DIRECT_BELOW = {torch.float64: 1e-3, torch.float32: 1e-8}
"""Squared distances under this cancel too much, even in float64, for the kernel's precision."""

_DIRECT_CHUNK = 1 << 22

_LONG, _BAND = 128, 128
"""Features from which on products take longer than copying them, and rows that are multiplied at a
time where half of what they give is copied."""


class CostSource(Protocol):
    """Blocks of a symmetric cost matrix, on demand."""

    @property
    def size(self) -> int:
        """Number of points m."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the blocks."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the blocks."""
        ...

    @property
    def largest(self) -> float:
        """No distance exceeds this."""
        ...

    @property
    def held_bytes(self) -> int:
        """What the source itself keeps in memory, beyond what the caller gave it."""
        ...

    def block(self, rows: slice | Tensor, cols: slice, out: Tensor | None = None) -> Tensor:
        """C[rows, cols], not to be written to; a square block has an exactly zero diagonal.

        Rows may be numbers; no diagonal is known then. `out` is memory of this shape that may come
        to hold it.
        """
        ...

    def band(self, rows: slice, columns: Sequence[slice]) -> Iterator[Tensor]:
        """C[rows, cols] for each of several adjacent slices of columns."""
        ...

    def sharpen(self, eps: float) -> bool:
        """Make blocks precise enough for kernels of scale eps; True if they changed."""
        ...


class PointSource:
    """Squared Euclidean distances between unit rows, or their square roots."""

    def __init__(
        self,
        points: UnitRows,
        dtype: torch.dtype,
        device: torch.device,
        *,
        root: bool,
        origin: Tensor | None = None,
    ) -> None:
        self._points = points
        self._root = root
        self.size = len(points)
        self.dtype = dtype
        self.device = device
        self.largest = 2.0 if root else 4.0
        self._fast: Tensor | None = None
        self._anchored: AnchoredPoints | None = None
        self._finest_eps = 0.0
        """What the present way serves; the sharp one serves all."""
        if dtype == torch.float32 and not root:
            origin = points.rough_center() if origin is None else origin
            self._fast = points.seen_from(origin)
            self._norms = lengths(self._fast).squeeze(1).square_()
            largest = float(self._norms.max())
            self._finest_eps = _TOLERATED_ROUNDINGS * torch.finfo(dtype).eps * largest

    @property
    def points(self) -> UnitRows:
        """The points themselves."""
        return self._points

    @property
    def root(self) -> bool:
        """Whether distances are square roots."""
        return self._root

    @property
    def fast(self) -> Tensor | None:
        """Points `[m, d]` for fast distances, as seen from the origin; None if they are others."""
        return self._fast

    @property
    def finest_eps(self) -> float:
        """The smallest scale that the present way serves."""
        return self._finest_eps

    def seen_from(self, origin: Tensor) -> "PointSource":
        """The same points with another origin `[d]` for fast distances."""
        return PointSource(self._points, self.dtype, self.device, root=self._root, origin=origin)

    @property
    def held_bytes(self) -> int:
        """The copy of the points that a source of this size keeps at most."""
        copy = 0 if self._fast is None else self._fast.nbytes
        if self._may_anchor:
            copy += 2 * MOST_ANCHORS * self.size * self.dtype.itemsize
        return max(copy, self._points.held_bytes)

    @property
    def _may_anchor(self) -> bool:
        precise = accumulation_dtype(self.device) == torch.float64
        return self._fast is not None and precise and self.size > _ANCHORED_ABOVE

    def sharpen(self, eps: float) -> bool:
        """Leave a way that kernels of scale eps would show the rounding of."""
        if not eps < self._finest_eps:
            return False
        anchored = None
        if self._may_anchor or self._anchored is not None:
            self._anchored = None  # give its memory back first
            anchored = AnchoredPoints(self._points, eps)
        serves = anchored is not None and anchored.finest_eps <= eps
        self._fast = None
        self._anchored = anchored if serves else None
        self._finest_eps = anchored.finest_eps if anchored is not None and serves else 0.0
        return True

    def sharpen_all(self) -> None:
        """Take the sharp way, which serves every scale."""
        self._fast, self._anchored, self._finest_eps = None, None, 0.0

    def block(self, rows: slice | Tensor, cols: slice, out: Tensor | None = None) -> Tensor:
        """Distances `[len(rows), len(cols)]`."""
        return next(self.band(rows, [cols], out))

    def band(
        self, rows: slice | Tensor, columns: Sequence[slice], out: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Distances between the rows and each slice of columns; one fast product serves them all.

        Wide products use a processor better than square ones. `out` is memory for the product.
        """
        for cols, squared in zip(columns, self._squared(rows, columns, out), strict=True):
            distances = squared.sqrt_() if self._root else squared
            if _same(rows, cols):
                distances.fill_diagonal_(0)
            yield distances.to(self.dtype)

    def _squared(
        self, rows: slice | Tensor, columns: Sequence[slice], out: Tensor | None
    ) -> Iterator[Tensor]:
        if self._anchored is not None:
            yield from self._anchored.squared(rows, columns)
            return
        if self._fast is None:
            yield from (self._sharp_block(rows, cols) for cols in columns)
            return
        first = columns[0].start
        if len(columns) == 1 and _same(rows, columns[0]):
            products = _self_products(self._fast[rows], out)
        else:
            products = torch.mm(self._fast[rows], self._fast[first : columns[-1].stop].T, out=out)
        norms = self._norms[rows]
        for cols in columns:
            part = products[:, cols.start - first : cols.stop - first]
            yield _from_products(part, norms, self._norms[cols])

    def _sharp_block(self, rows: slice | Tensor, cols: slice) -> Tensor:
        left, right = self._points.rows(rows), self._points.rows(cols)
        return sharp_squared(left, right, self.dtype, same=_same(rows, cols))


def _same(rows: slice | Tensor, cols: slice) -> bool:
    return isinstance(rows, slice) and rows == cols


def sharp_squared(left: Tensor, right: Tensor, dtype: torch.dtype, *, same: bool) -> Tensor:
    """Squared distances of unit rows in float64, sharp enough for kernels of the given precision.

    Of the same rows twice, the diagonal is left to the caller, who knows it.
    """
    if same:
        norms = left.square().sum(dim=1)
        squared = _from_products(_self_products(left), norms, norms).fill_diagonal_(torch.inf)
    else:
        squared = fast_squared(left, right)
    recompute_close(squared, left, right, _DIRECT_BELOW[dtype])
    return squared


def fast_squared(left: Tensor, right: Tensor) -> Tensor:
    """Squared distances `[a, b]` of points `[a, d]` and `[b, d]` by products alone."""
    return _from_products(left @ right.T, left.square().sum(1), right.square().sum(1))


def recompute_close(squared: Tensor, left: Tensor, right: Tensor, threshold: float) -> None:
    """Replace squared distances below the threshold by those of the differences themselves."""
    if not squared.amin() < threshold:
        return
    i, j = (squared < threshold).nonzero(as_tuple=True)
    if len(i) * 8 > squared.numel():
        squared[:] = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist").square_()
        return
    step = max(1, _DIRECT_CHUNK // left.shape[1])
    for start in range(0, len(i), step):
        a, b = i[start : start + step], j[start : start + step]
        squared[a, b] = (left[a] - right[b]).square_().sum(dim=1)


def _self_products(points: Tensor, out: Tensor | None = None) -> Tensor:
    """`points @ points.T`; of long points little more than half is computed, the rest mirrored."""
    if points.shape[1] < _LONG or points.device.type != "cpu":  # others like few large launches
        return torch.mm(points, points.T, out=out)
    size = len(points)
    products = points.new_empty(size, size) if out is None else out

    def multiply(band: slice) -> None:
        torch.mm(points[band], points[band.start :].T, out=products[band, band.start :])
        products[band.stop :, band] = products[band, band.stop :].T

    for _ in in_order(multiply, slices(size, _BAND), points.device):
        pass
    return products


def _from_products(products: Tensor, left_norms: Tensor, right_norms: Tensor) -> Tensor:
    """|a|² + |b|² - 2ab, in the place of the products ab if these are a tile of their own."""
    own = products if products.is_contiguous() else None
    return (
        torch.sub(right_norms, products, alpha=2, out=own).add_(left_norms[:, None]).clamp_(min=0)
    )


class MatrixSource:
    """A cost matrix given by the caller, read in place."""

    held_bytes = 0

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix
        self.size = len(matrix)
        self.largest = float(matrix.max())
        self.dtype = matrix.dtype
        self.device = matrix.device

    def sharpen(self, eps: float) -> bool:
        """The caller's numbers are as precise as they are."""
        return False

    def block(self, rows: slice | Tensor, cols: slice, out: Tensor | None = None) -> Tensor:
        """A view of the caller's matrix, or a copy of some rows of it."""
        return self._matrix[rows, cols]

    def band(self, rows: slice, columns: Sequence[slice]) -> Iterator[Tensor]:
        """Views of the caller's matrix."""
        return (self._matrix[rows, cols] for cols in columns)


def point_source(features: Tensor, *, center: bool = False, root: bool = False) -> PointSource:
    """Unit rows of `features` `[m, d]` as a source; float64 kernels for float64 features only."""
    double = features.dtype == torch.float64 == accumulation_dtype(features.device)
    dtype = torch.float64 if double else torch.float32
    points = UnitRows(features, center=center)
    return PointSource(points, dtype, features.device, root=root)
