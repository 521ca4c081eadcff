"""A geometry made of square tiles of the cost matrix's upper triangle.

A tile serves its rows and, transposed, its columns: half the products and half the exponentials.
Tiles are sized to stay in the cache between the exponential and the product.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import threshold

from sphere_replay.geometry.calibration import Scale, sampled, scales_of_neighbors
from sphere_replay.geometry.kernels import kernel_of
from sphere_replay.geometry.order import order_statistics, smallest
from sphere_replay.geometry.protocol import Neighborhood
from sphere_replay.geometry.scratch import working
from sphere_replay.geometry.sources import CostSource
from sphere_replay.geometry.threads import in_order, usable
from sphere_replay.geometry.tiling import FEW, TileStore
from sphere_replay.numeric import accumulation_dtype

_LEAST_EXPONENT = {torch.float32: -80.0, torch.float64: -700.0}
"""exp() of much less is subnormal: dozens of times slower, and nothing beside K_ii = 1."""

_LEAST_LOGARITHM = -1e307
"""Two of them can be added, and still be compared."""


class TileGeometry(TileStore):
    """Exact kernel products over tiles."""

    def __init__(
        self, source: CostSource, keep_bytes: int | None = None, panel_bytes: int = 1 << 27
    ) -> None:
        super().__init__(source, keep_bytes, panel_bytes)
        self._vector_dtype = accumulation_dtype(source.device)
        self.unit = 1.0
        """C = distance / unit; set once by whoever chose the distance."""
        self.why = ""
        """Why this geometry was chosen."""

    def explained(self) -> str:
        """How the kernels are applied: exactly."""
        return f"exactly, {self.why}"

    def apply_kernel(self, eps: float, vectors: Tensor, *, others_only: bool = False) -> Tensor:
        """exp(-C/eps) @ vectors, for vectors `[m]` or `[m, p]`; tiles are summed in float64."""
        # One vector per row: products of a few rows with a tile are several times faster than
        # those of a tile with a few columns.
        stacked = vectors.to(self.dtype).reshape(self.size, -1).T.contiguous()

        def products(rows: slice, cols: slice, distances: Tensor) -> tuple[Tensor, Tensor | None]:
            kernel = self._kernel(distances, eps)
            if others_only:
                kernel = self._reaching(kernel, eps)
            if rows != cols:
                return stacked[:, cols] @ kernel.T, stacked[:, rows] @ kernel
            if others_only:
                kernel.fill_diagonal_(0)
            return stacked[:, cols] @ kernel.T, None

        self._sharpen(eps)
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
            kernel = self._kernel(distances, eps)
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
        self._sharpen(self._radius_of_few(min(columns)) / self.unit)
        radius = self._search(columns)
        if self._sharpen(float(radius.median(dim=1).values.min()) / self.unit):
            radius = self._search(columns)
        return radius / self.unit

    def kernel_scales(self, neighbors: Sequence[float]) -> list[float]:
        """For each wanted number the eps at which it is the median N_eff of up to 128 memories."""
        scales = self._scales(self._sampled_rows(FEW), neighbors)
        self._sharpen(min(scales).eps / self.unit)
        for _ in range(2):  # again if the scales turn out finer than the few rows told
            self._fill()
            rows = self._sampled_rows(sampled(self.size))
            scales = self._scales(rows, neighbors, scales)
            if not self._sharpen(min(scales).eps / self.unit):
                break
        return [scale.eps / self.unit for scale in scales]

    def _radius_of_few(self, neighbor: int) -> float:
        """The median raw distance of a few rows to that neighbour."""
        rows = slice(0, self.size, 1 + self.size // FEW)
        few = self._source.block(rows, slice(0, self.size))
        return float(smallest(few, neighbor + 1)[:, -1].median())

    def _scales(
        self, rows: Tensor, neighbors: Sequence[float], guesses: Sequence[Scale] = ()
    ) -> list[Scale]:
        return scales_of_neighbors(rows, neighbors, guesses)

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
        low, high = self._pairs_of_rank(ranks)
        return (low + high) / 2 / self.unit

    def _pairs_of_rank(self, ranks: Sequence[int]) -> list[float]:
        """The raw distances of these ranks among those of all pairs."""
        return order_statistics(self._pair_values, ranks, self.dtype, self._counts_together)

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

    def _kernel(self, distances: Tensor, eps: float) -> Tensor:
        """exp(-C/eps) of a tile, in memory that the next one is written to."""
        memory = working("kernel", distances.shape, self.dtype, self.device)
        return self._exponential(distances, eps, memory)

    def _exponential(self, distances: Tensor, eps: float, out: Tensor) -> Tensor:
        least = _LEAST_EXPONENT[self.dtype] if self._vanishing(eps) else None
        return kernel_of(distances, eps * self.unit, least=least, out=out)

    def _reaching(self, kernel: Tensor, eps: float) -> Tensor:
        """Entries at the least exponent stand for zero, which matters without K_ii = 1."""
        if not self._vanishing(eps):
            return kernel
        return threshold(kernel, 1.01 * math.exp(_LEAST_EXPONENT[self.dtype]), 0.0)

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
            self._forget()
        return sharpened
