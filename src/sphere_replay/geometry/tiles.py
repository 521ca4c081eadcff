"""A geometry made of square tiles of the cost matrix's upper triangle.

C is symmetric, so a tile (I, J) serves rows I and, transposed, rows J: half the products and half
the exponentials. Tiles are sized to stay in the cache between the exponential and the product.
How many tiles are kept, and how many are made anew for every pass, is all that distinguishes
`DenseGeometry` from `TiledGeometry`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import threshold

from sphere_replay.geometry.calibration import scale_of_neighbors
from sphere_replay.geometry.order import order_statistics, smallest
from sphere_replay.geometry.protocol import Neighborhood
from sphere_replay.geometry.scratch import Lender, working
from sphere_replay.geometry.sources import CostSource
from sphere_replay.geometry.threads import in_order, usable
from sphere_replay.numeric import accumulation_dtype

TILE = {"cpu": 512}
DEFAULT_TILE = 4096
"""Rows of a tile: what a CPU core's cache holds; accelerators prefer fewer, larger launches."""

_LEAST_EXPONENT = {torch.float32: -80.0, torch.float64: -700.0}
"""exp() of much less is subnormal: dozens of times slower, and nothing beside K_ii = 1."""

_LEAST_LOGARITHM = -1e307
"""Two of them can be added, and still be compared."""

FEW = 32
_SAMPLE = 128
"""Evenly spaced rows that give a first idea of a scale, and those that settle it."""

_TOGETHER = 4
"""Tiles of a row that are made by one product."""

_SMALL = 1024
"""Memories up to which all are one tile, whose kernels are kept too: each is applied two or three
times, and threads would gain little by sharing so little work."""

Band = tuple[slice, list[slice]]
"""Rows, and columns of adjacent tiles."""

Result = TypeVar("Result")


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
        if keep_bytes is None and source.size <= _SMALL:
            self._tile = _SMALL
        self._filled = False
        self._kernels: dict[tuple[int, int, float], Tensor] = {}
        self._lender = Lender()
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

    @property
    def _small(self) -> bool:
        return self.size <= min(_SMALL, self._tile) and self._keep_bytes is None

    def apply_kernel(self, eps: float, vectors: Tensor, *, others_only: bool = False) -> Tensor:
        """exp(-C/eps) @ vectors, for vectors `[m]` or `[m, p]`; tiles are summed in float64."""
        # One vector per row: products of a few rows with a tile are several times faster than
        # those of a tile with a few columns.
        stacked = vectors.to(self.dtype).reshape(self.size, -1).T.contiguous()

        def products(rows: slice, cols: slice, distances: Tensor) -> tuple[Tensor, Tensor | None]:
            kernel = self._kernel(rows, cols, distances, eps)
            if others_only and self._vanishing(eps):
                # Entries at the least exponent stand for zero, which matters without K_ii = 1.
                kernel = threshold(kernel, 1.01 * math.exp(_LEAST_EXPONENT[self.dtype]), 0.0)
            if rows != cols:
                return stacked[:, cols] @ kernel.T, stacked[:, rows] @ kernel
            if not others_only:
                return stacked[:, cols] @ kernel.T, None
            product = stacked[:, cols] @ kernel.fill_diagonal_(0).T
            kernel.fill_diagonal_(1)  # as it was: it may be kept
            return product, None

        self._sharpen(eps)
        if self._small:  # one tile, nothing to add up
            ((_, _, (only, _)),) = self._over_tiles(products)
            return only.to(self._vector_dtype).T.reshape(vectors.shape)
        result = torch.zeros(stacked.shape, dtype=self._vector_dtype, device=self.device)
        for rows, cols, (along, across) in self._over_tiles(products):
            result[:, rows] += along
            if across is not None:
                result[:, cols] += across
        return self._together(result).T.reshape(vectors.shape)

    def apply_log_kernel(self, eps: float, log_vector: Tensor) -> Tensor:
        """log(exp(-C/eps) @ exp(log_vector)) for `[m]`, in float64 throughout."""
        log_vector = log_vector.to(self._vector_dtype)

        def products(rows: slice, cols: slice, distances: Tensor) -> tuple[Tensor, Tensor | None]:
            exponents = distances.to(self._vector_dtype) * (-1 / (eps * self.unit))
            along = torch.logsumexp(exponents + log_vector[cols], dim=1)
            if rows == cols:
                return along, None
            return along, torch.logsumexp(exponents + log_vector[rows, None], dim=0)

        result = torch.full_like(log_vector, -torch.inf)
        self._sharpen(eps)
        for rows, cols, (along, across) in self._over_tiles(products):
            result[rows] = torch.logaddexp(result[rows], along)
            if across is not None:
                result[cols] = torch.logaddexp(result[cols], across)
        return self._log_together(result)

    def log_transport(self, eps: float, log_vector: Tensor) -> tuple[Tensor, Tensor]:
        """Target a ⊙ E(1/Z)/m and log Z for log a `[m]` of any size; E = exp(-C/eps), Z = E a.

        Numbers of 1e16 are rounded to even ones, so log Z cannot be subtracted from an exponent.
        The largest exponent of each source can: it is one of them. Every source then sends mass
        one, whatever the rounding.
        """
        log_vector = log_vector.to(self._vector_dtype).clamp(min=_LEAST_LOGARITHM)

        def exponents(distances: Tensor, places: slice) -> Tensor:
            costs = distances.to(self._vector_dtype) * (-1 / (eps * self.unit))
            return costs.clamp_(min=_LEAST_LOGARITHM) + log_vector[places]

        def each(work: Callable[[Tensor, slice], Tensor]) -> Iterator[tuple[slice, slice, Tensor]]:
            """Sources, places, and the work on their exponents `[sources, places]`."""

            def on_tile(rows: slice, cols: slice, distances: Tensor) -> tuple[Tensor, Tensor]:
                along = work(exponents(distances, cols), rows)
                across = along if rows == cols else work(exponents(distances.T, rows), cols)
                return along, across

            for rows, cols, (along, across) in self._over_tiles(on_tile):
                yield rows, cols, along
                if rows != cols:
                    yield cols, rows, across

        self._sharpen(eps)
        highest = torch.full_like(log_vector, -torch.inf)
        for sources, _, top in each(lambda x, _: x.amax(dim=1)):
            highest[sources] = torch.maximum(highest[sources], top)
        highest = self._largest_together(highest)
        sums, target = torch.zeros_like(highest), torch.zeros_like(highest)
        for sources, _, sent in each(lambda x, here: (x - highest[here, None]).exp().sum(dim=1)):
            sums[sources] += sent
        sums = self._together(sums[None])[0]
        for _, places, arriving in each(
            lambda x, here: ((x - highest[here, None]).exp() / sums[here, None]).sum(dim=0)
        ):
            target[places] += arriving
        return self._together(target[None])[0] / self.size, highest + sums.log()

    def neighborhood(self, eps: float) -> Neighborhood:
        """Mass, effective size and radius of every neighbourhood of exp(-C/eps)."""

        def totals(rows: slice, cols: slice, distances: Tensor) -> list[tuple[Tensor, Tensor]]:
            kernel = self._kernel(rows, cols, distances, eps)
            parts = kernel, kernel.square(), kernel * distances
            return [(values.sum(1), values.sum(0)) for values in parts]

        sums = torch.zeros(3, self.size, dtype=self._vector_dtype, device=self.device)
        self._sharpen(eps)
        for rows, cols, found in self._over_tiles(totals):
            for total, (along, across) in zip(sums, found, strict=True):
                total[rows] += along
                if rows != cols:
                    total[cols] += across
        mass, squares, distance = self._together(sums)
        return Neighborhood(mass, mass.square() / squares, distance / (mass * self.unit))

    def neighbor_radius(self, neighbors: Sequence[int]) -> Tensor:
        """`[len(neighbors), m]`: distance to the k-th nearest other memory, k clamped to m - 1."""
        columns = [min(k, self.size - 1) for k in neighbors]
        # Radii are what kernel scales are made of: they must be as sharp as those scales. A few
        # rows tell almost always; where they do not, the search is done again.
        if self._small:  # they need no product of their own
            radius = self._search(columns)
            few = float(radius[:, self._few].median(dim=1).values.min())
        else:
            few = self._radius_of_few(min(columns))
        if self._sharpen(few / self.unit) or not self._small:
            radius = self._search(columns)
        if self._sharpen(float(radius.median(dim=1).values.min()) / self.unit):
            radius = self._search(columns)
        return radius / self.unit

    def kernel_scales(self, neighbors: Sequence[float]) -> list[float]:
        """For each wanted number the eps at which it is the median N_eff of up to 128 memories."""
        scales = self._scales(self._sampled_rows(FEW), neighbors, [0.0] * len(neighbors))
        self._sharpen(min(scales) / self.unit)
        for _ in range(2):  # again if the scales turn out finer than the few rows told
            self._fill()
            rows = self._sampled_rows(self._panel_height(_SAMPLE))
            scales = self._scales(rows, neighbors, scales)
            if not self._sharpen(min(scales) / self.unit):
                break
        return [eps / self.unit for eps in scales]

    @property
    def _few(self) -> slice:
        return slice(0, self.size, 1 + self.size // FEW)

    def _radius_of_few(self, neighbor: int) -> float:
        """The median raw distance of a few rows to that neighbour."""
        few = self._source.block(self._few, slice(0, self.size))
        return float(smallest(few, neighbor + 1)[:, -1].median())

    def _scales(
        self, rows: Tensor, neighbors: Sequence[float], guesses: Sequence[float]
    ) -> list[float]:
        def scale(task: tuple[float, float]) -> float:
            return scale_of_neighbors(rows, *task)

        tasks = list(zip(neighbors, guesses, strict=True))
        return list(in_order(scale, tasks, self.device))

    def median_distance(self) -> float:
        """Median of C_kl over pairs k < l; over distinct pairs if most coincide; 0 if all do."""
        pairs = self.size * (self.size - 1) // 2
        zeros = torch.zeros(1, dtype=torch.int64, device=self.device)
        for values in self._pair_values():
            zeros += (values == 0).sum()
        coincident = int(self._counts_together(zeros))
        if coincident == pairs:
            return 0.0
        below = coincident if coincident > pairs // 2 else 0
        ranks = [below + (pairs - below - 1) // 2, below + (pairs - below) // 2]
        if self._small:
            (values,) = self._pair_values()
            low, high = map(float, values.sort().values[ranks])
        else:
            low, high = order_statistics(
                self._pair_values, ranks, self.dtype, self._counts_together
            )
        return (low + high) / 2 / self.unit

    def _together(self, sums: Tensor) -> Tensor:
        """Sums over all tiles `[p, m]`, of those over the tiles that were seen here: all of them.

        This and the next three are for a geometry whose tiles are seen in several places.
        """
        return sums

    def _log_together(self, log_sums: Tensor) -> Tensor:
        """The same for the logarithms `[m]` of sums."""
        return log_sums

    def _largest_together(self, values: Tensor) -> Tensor:
        """The same for maxima `[m]`."""
        return values

    def _counts_together(self, counts: Tensor) -> Tensor:
        """The same for counts, int64 of any shape."""
        return counts

    def _search(self, columns: Sequence[int]) -> Tensor:
        """Raw distances to the given neighbours, from panels of rows put together from tiles."""
        self._fill()
        height = max(1, self._panel_height(self._tile) // usable())
        panels = [
            (band, slice(start, min(start + height, band.stop)))
            for band in self._slices()
            for start in range(band.start, band.stop, height)
        ]

        def radii(panel: tuple[slice, slice]) -> Tensor:
            band, rows = panel
            # A row's smallest value is its zero distance to itself; neighbour k has index k.
            return smallest(self._full_rows(band, rows), max(columns) + 1)[:, columns].T

        radius = torch.empty(len(columns), self.size, dtype=self._vector_dtype, device=self.device)
        for (_, rows), found in zip(panels, in_order(radii, panels, self.device), strict=True):
            radius[:, rows] = found.to(radius.dtype)
        return radius

    def _full_rows(self, band: slice, rows: slice) -> Tensor:
        """C[rows, :] for rows within a band of tiles; not to be written to."""
        blocks = [self._block(band, rows, cols) for cols in self._slices()]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)

    def _sampled_rows(self, count: int) -> Tensor:
        """Raw distances of about `count` evenly spaced memories to all, from kept tiles if any."""
        step = math.ceil(self.size / max(count, FEW))
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
        if self._filled:
            return
        self._filled = True
        pieces = [piece for row in self._slices() for piece in self._pieces(row, kept=False)]
        if self._keep_bytes is not None:
            pieces = self._fitting(pieces, self._keep_bytes)
        made = in_order(self._tiles_of, pieces, self.device)
        for (rows, columns), tiles in zip(pieces, made, strict=True):
            for cols, tile in zip(columns, tiles, strict=True):
                self._kept[rows.start, cols.start] = tile
                self._kept_bytes += tile.nbytes

    def _fitting(self, pieces: Sequence[Band], most_bytes: int) -> list[Band]:
        """The first of the pieces, as far as they fit in beside what is kept."""
        fitting = []
        left = most_bytes - self._kept_bytes
        for rows, columns in pieces:
            size = (rows.stop - rows.start) * self._tile * self.dtype.itemsize
            room = columns[: left // size]
            if room:
                fitting.append((rows, room))
            if len(room) < len(columns):
                break
            left -= sum((rows.stop - rows.start) * (cols.stop - cols.start) for cols in room) * (
                self.dtype.itemsize
            )
        return fitting

    def _over_tiles(
        self, work: Callable[[slice, slice, Tensor], Result]
    ) -> Iterator[tuple[slice, slice, Result]]:
        """`work` on every tile of the upper triangle, row by row: kept tiles, then others."""
        self._fill()
        if self._small:  # nothing to spread over threads
            whole = slice(0, self.size)
            yield whole, whole, work(whole, whole, self._kept[0, 0])
            return
        pieces = [
            piece
            for row in self._slices()
            for kept in (True, False)
            for piece in self._pieces(row, kept=kept)
        ]

        def on_piece(piece: Band) -> list[Result]:
            rows, columns = piece
            tiles = zip(columns, self._tiles_of(piece), strict=True)
            return [work(rows, cols, tile) for cols, tile in tiles]

        done = in_order(on_piece, pieces, self.device)
        for (rows, columns), results in zip(pieces, done, strict=True):
            for cols, result in zip(columns, results, strict=True):
                yield rows, cols, result

    def _pieces(self, rows: slice, *, kept: bool) -> Iterator[Band]:
        """The tiles of a row that are kept, or those that are not, a few adjacent ones at a time.

        Those that are not are all from some column on.
        """
        columns = [
            cols
            for cols in self._slices(rows.start)
            if ((rows.start, cols.start) in self._kept) is kept
        ]
        for first in range(0, len(columns), _TOGETHER):
            yield rows, columns[first : first + _TOGETHER]

    def _tiles_of(self, piece: Band) -> list[Tensor]:
        rows, columns = piece
        if (rows.start, columns[0].start) in self._kept:
            return [self._kept[rows.start, cols.start] for cols in columns]
        if self._small:
            shape = self.size, self.size
            out = self._lender.tensor(shape, self.dtype, self.device)
            return [self._source.block(rows, columns[0], out)]
        return list(self._source.band(rows, columns))

    def _kernel(self, rows: slice, cols: slice, distances: Tensor, eps: float) -> Tensor:
        """exp(-C/eps) of a tile; those of a small memory are kept, for they are asked for again."""
        key = (rows.start, cols.start, eps * self.unit)
        if (kept := self._kernels.get(key)) is not None:
            return kept
        if self._small:
            kernel = self._lender.tensor(distances.shape, self.dtype, self.device)
        else:
            kernel = working("kernel", distances.shape, self.dtype, self.device)
        torch.mul(distances, -1 / (eps * self.unit), out=kernel)
        if self._vanishing(eps):
            kernel.clamp_(min=_LEAST_EXPONENT[self.dtype])
        kernel.exp_()
        if self._small:
            self._kernels[key] = kernel
        return kernel

    def _vanishing(self, eps: float) -> bool:
        """Whether exp(-C/eps) may be too small for a number."""
        return self._source.largest > -_LEAST_EXPONENT[self.dtype] * eps * self.unit

    def _pair_values(self) -> Iterator[Tensor]:
        def pairs(rows: slice, cols: slice, distances: Tensor) -> Tensor:
            if rows != cols:
                return distances.flatten()
            side = len(distances)
            i, j = torch.triu_indices(side, side, offset=1, device=self.device)
            return distances[i, j]

        return (values for _, _, values in self._over_tiles(pairs))

    def _sharpen(self, eps: float) -> bool:
        sharpened = self._source.sharpen(eps * self.unit)
        if sharpened:
            self._kept.clear()
            self._kernels.clear()
            self._filled = False
            self._kept_bytes = 0
        return sharpened

    def _slices(self, first: int = 0) -> Iterator[slice]:
        for start in range(first, self.size, self._tile):
            yield slice(start, min(start + self._tile, self.size))
