"""A geometry made of square tiles of the cost matrix's upper triangle.

C is symmetric, so a tile (I, J) serves rows I and, transposed, rows J: half the products and half
the exponentials. Tiles are sized to stay in the cache between the exponential and the product.
How many tiles are kept, and how many are made anew for every pass, is all that distinguishes
`DenseGeometry` from `TiledGeometry`.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import threshold

from sphere_replay.geometry.calibration import scale_of_neighbors
from sphere_replay.geometry.order import order_statistics, smallest
from sphere_replay.geometry.protocol import Neighborhood
from sphere_replay.geometry.sources import CostSource
from sphere_replay.numeric import accumulation_dtype

TILE = {"cpu": 512}
DEFAULT_TILE = 4096
"""Rows of a tile: what a CPU core's cache holds; accelerators prefer fewer, larger launches."""

_LEAST_EXPONENT = {torch.float32: -80.0, torch.float64: -700.0}
"""exp() of much less is subnormal: dozens of times slower, and nothing beside K_ii = 1."""

_FEW = 32
_SAMPLE = 128
"""Evenly spaced rows that give a first idea of a scale, and those that settle it."""

_TOGETHER = 4
"""Tiles of a row that are made by one product."""

Tile = tuple[slice, slice, Tensor]


class TileGeometry:
    """Exact kernel products over tiles, `keep_bytes` of which stay in memory.

    Args:
        source: Where distances come from.
        keep_bytes: How much may be spent on keeping tiles between passes; None keeps all.
        panel_bytes: How large a block of full rows may be when neighbours are searched.
    """

    def __init__(
        self, source: CostSource, keep_bytes: int | None = None, panel_bytes: int = 1 << 27
    ) -> None:
        self._source = source
        self._keep_bytes = keep_bytes
        self._panel_bytes = panel_bytes
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._kept_bytes = 0
        self._tile = TILE.get(source.device.type, DEFAULT_TILE)
        side = min(self._tile, source.size)
        self._buffer = torch.empty(side**2, dtype=source.dtype, device=source.device)
        self._vector_dtype = accumulation_dtype(source.device)
        self.unit = 1.0
        """C = distance / unit; set once by whoever chose the distance."""
        self.why = ""
        """Why this geometry was chosen."""

    @property
    def size(self) -> int:
        """Number of memories m."""
        return self._source.size

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which kernels are evaluated."""
        return self._source.dtype

    @property
    def device(self) -> torch.device:
        """Where the products are computed."""
        return self._source.device

    def apply_kernel(self, eps: float, vectors: Tensor, *, others_only: bool = False) -> Tensor:
        """exp(-C/eps) @ vectors, for vectors `[m]` or `[m, p]`; tiles are summed in float64."""
        # One vector per row: products of a few rows with a tile are several times faster than
        # those of a tile with a few columns.
        stacked = vectors.to(self.dtype).reshape(self.size, -1).T.contiguous()
        result = torch.zeros(stacked.shape, dtype=self._vector_dtype, device=self.device)
        for rows, cols, kernel in self._kernel_tiles(eps):
            if others_only:
                # Entries at the least exponent stand for zero, which matters without K_ii = 1.
                threshold(kernel, 1.01 * math.exp(_LEAST_EXPONENT[self.dtype]), 0.0, inplace=True)
                if rows == cols:
                    kernel.fill_diagonal_(0)
            result[:, rows] += stacked[:, cols] @ kernel.T
            if rows != cols:
                result[:, cols] += stacked[:, rows] @ kernel
        return result.T.reshape(vectors.shape)

    def apply_log_kernel(self, eps: float, log_vector: Tensor) -> Tensor:
        """log(exp(-C/eps) @ exp(log_vector)) for `[m]`, in float64 throughout."""
        log_vector = log_vector.to(self._vector_dtype)
        result = torch.full_like(log_vector, -torch.inf)
        self._sharpen(eps)
        for rows, cols, distances in self._tiles():
            exponents = distances.to(self._vector_dtype) * (-1 / (eps * self.unit))
            along = torch.logsumexp(exponents + log_vector[cols], dim=1)
            result[rows] = torch.logaddexp(result[rows], along)
            if rows != cols:
                across = torch.logsumexp(exponents + log_vector[rows, None], dim=0)
                result[cols] = torch.logaddexp(result[cols], across)
        return result

    def neighborhood(self, eps: float) -> Neighborhood:
        """Mass, effective size and radius of every neighbourhood of exp(-C/eps)."""
        sums = torch.zeros(3, self.size, dtype=self._vector_dtype, device=self.device)
        self._sharpen(eps)
        for rows, cols, distances in self._tiles():
            kernel = self._exponential(distances * (-1 / (eps * self.unit)), eps)
            for total, values in zip(
                sums, (kernel, kernel.square(), kernel * distances), strict=True
            ):
                total[rows] += values.sum(1)
                if rows != cols:
                    total[cols] += values.sum(0)
        mass, squares, distance = sums
        return Neighborhood(mass, mass.square() / squares, distance / (mass * self.unit))

    def neighbor_radius(self, neighbors: Sequence[int]) -> Tensor:
        """`[len(neighbors), m]`: distance to the k-th nearest other memory, k clamped to m - 1."""
        columns = [min(k, self.size - 1) for k in neighbors]
        # Radii are what kernel scales are made of: they must be as sharp as those scales. A few
        # rows tell almost always; where they do not, the search is done again.
        few = self._source.block(slice(0, self.size, 1 + self.size // _FEW), slice(0, self.size))
        self._sharpen(float(smallest(few, min(columns) + 1)[:, -1].median()) / self.unit)
        radius = self._search(columns)
        if self._sharpen(float(radius.median(dim=1).values.min()) / self.unit):
            radius = self._search(columns)
        return radius / self.unit

    def kernel_scales(self, neighbors: Sequence[float]) -> list[float]:
        """For each wanted number the eps at which it is the median N_eff of up to 128 memories."""
        few = self._sampled_rows(_FEW)
        scales = [scale_of_neighbors(few, wanted) for wanted in neighbors]
        self._sharpen(min(scales) / self.unit)
        for _ in range(2):  # again if the scales turn out finer than the few rows told
            self._fill()
            rows = self._sampled_rows(self._panel_height(_SAMPLE))
            scales = [
                scale_of_neighbors(rows, *pair) for pair in zip(neighbors, scales, strict=True)
            ]
            if not self._sharpen(min(scales) / self.unit):
                break
        return [eps / self.unit for eps in scales]

    def median_distance(self) -> float:
        """Median of C_kl over pairs k < l; over distinct pairs if most coincide; 0 if all do."""
        pairs = self.size * (self.size - 1) // 2
        coincident = sum(int((values == 0).sum()) for values in self._pair_values())
        if coincident == pairs:
            return 0.0
        below = coincident if coincident > pairs // 2 else 0
        ranks = [below + (pairs - below - 1) // 2, below + (pairs - below) // 2]
        low, high = order_statistics(self._pair_values, ranks, self.dtype)
        return (low + high) / 2 / self.unit

    def _search(self, columns: Sequence[int]) -> Tensor:
        """Raw distances to the given neighbours, from panels of rows put together from tiles."""
        height = max(1, self._panel_height(self._tile))
        panel = torch.empty(height, self.size, dtype=self.dtype, device=self.device)
        radius = torch.empty(len(columns), self.size, dtype=self._vector_dtype, device=self.device)
        self._fill()
        for band in self._slices():
            for start in range(band.start, band.stop, height):
                rows = slice(start, min(start + height, band.stop))
                full = panel[: rows.stop - rows.start]
                for cols in self._slices():
                    full[:, cols] = self._block(band, rows, cols)
                full.diagonal(start).zero_()
                # A row's smallest value is its zero distance to itself; neighbour k has index k.
                radius[:, rows] = smallest(full, max(columns) + 1)[:, columns].T.to(radius.dtype)
        return radius

    def _sampled_rows(self, count: int) -> Tensor:
        """Raw distances of about `count` evenly spaced memories to all, from kept tiles if any."""
        step = math.ceil(self.size / max(count, _FEW))
        count = math.ceil(self.size / step)
        sample = torch.empty(count, self.size, dtype=self.dtype, device=self.device)
        bands = list(self._slices()) if self._kept else [slice(0, self.size)]
        for band in bands:
            rows = slice(step * math.ceil(band.start / step), band.stop, step)
            here = slice(rows.start // step, math.ceil(band.stop / step))
            if here.start < here.stop:
                for cols in self._slices():
                    sample[here, cols] = self._block(band, rows, cols)
        sample[:, ::step].fill_diagonal_(0)
        return sample

    def _panel_height(self, most: int) -> int:
        """How many full rows may be held at once, up to `most`."""
        return min(most, self._panel_bytes // (self.size * self.dtype.itemsize))

    def _block(self, band: slice, rows: slice, cols: slice) -> Tensor:
        """C[rows, cols] for rows within a band of tiles, from a kept tile if there is one."""
        within = slice(rows.start - band.start, rows.stop - band.start, rows.step)
        if (kept := self._kept.get((band.start, cols.start))) is not None:
            return kept[within]
        if (kept := self._kept.get((cols.start, band.start))) is not None:
            return kept[:, within].T
        return self._source.block(rows, cols)

    def _fill(self) -> None:
        """Make and keep as many tiles as may be kept, from the first on."""
        for rows, missing in self._missing():
            room = missing
            if self._keep_bytes is not None:
                size = (rows.stop - rows.start) * self._tile * self.dtype.itemsize
                room = missing[: (self._keep_bytes - self._kept_bytes) // size]
            for cols, tile in self._made(rows, room):
                self._kept[rows.start, cols.start] = tile
                self._kept_bytes += tile.nbytes
            if len(room) < len(missing):
                return

    def _tiles(self) -> Iterator[Tile]:
        """Every tile of the upper triangle, row by row."""
        self._fill()
        for rows, missing in self._missing():
            for cols in self._slices(rows.start):
                if (kept := self._kept.get((rows.start, cols.start))) is not None:
                    yield rows, cols, kept
            for cols, tile in self._made(rows, missing):
                yield rows, cols, tile

    def _missing(self) -> Iterator[tuple[slice, list[slice]]]:
        """For each row of tiles the adjacent ones that are not kept: all from some column on."""
        for rows in self._slices():
            columns = self._slices(rows.start)
            yield rows, [cols for cols in columns if (rows.start, cols.start) not in self._kept]

    def _made(self, rows: slice, columns: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]:
        for first in range(0, len(columns), _TOGETHER):
            together = columns[first : first + _TOGETHER]
            yield from zip(together, self._source.band(rows, together), strict=True)

    def _kernel_tiles(self, eps: float) -> Iterator[Tile]:
        self._sharpen(eps)
        for rows, cols, distances in self._tiles():
            kernel = self._buffer[: distances.numel()].view(distances.shape)
            torch.mul(distances, -1 / (eps * self.unit), out=kernel)
            yield rows, cols, self._exponential(kernel, eps)

    def _exponential(self, exponents: Tensor, eps: float) -> Tensor:
        """exp(exponents) in place, for -C/eps."""
        least = _LEAST_EXPONENT[self.dtype]
        if self._source.largest > -least * eps * self.unit:
            exponents.clamp_(min=least)
        return exponents.exp_()

    def _pair_values(self) -> Iterator[Tensor]:
        for rows, cols, distances in self._tiles():
            if rows == cols:
                side = len(distances)
                i, j = torch.triu_indices(side, side, offset=1, device=self.device)
                yield distances[i, j]
            else:
                yield distances.flatten()

    def _sharpen(self, eps: float) -> bool:
        sharpened = self._source.sharpen(eps * self.unit)
        if sharpened:
            self._kept.clear()
            self._kept_bytes = 0
        return sharpened

    def _slices(self, first: int = 0) -> Iterator[slice]:
        for start in range(first, self.size, self._tile):
            yield slice(start, min(start + self._tile, self.size))
