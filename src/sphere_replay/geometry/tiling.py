"""Square tiles of a cost matrix's upper triangle, some of which are kept.

C is symmetric, so a tile (I, J) serves rows I and, transposed, rows J. How many tiles are kept, and
how many are made anew for every pass, is all that distinguishes `DenseGeometry` from
`TiledGeometry`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from sphere_replay.geometry.sources import CostSource
from sphere_replay.geometry.threads import in_order
from sphere_replay.numeric import spread

TILE = {"cpu": 512}
DEFAULT_TILE = 4096
"""Rows of a tile: what a CPU core's cache holds; accelerators prefer fewer, larger launches."""

FEW = 32
"""Rows that give a first idea of a scale."""

_TOGETHER = 4
"""Tiles of a row that are made by one product."""

Band = tuple[slice, list[slice]]
"""Rows, and columns of adjacent tiles."""

Result = TypeVar("Result")


class TileStore:
    """Tiles of a source's distances, `keep_bytes` of which stay in memory.

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
        self._filled = False

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

    def _full_rows(self, band: slice, rows: slice) -> Tensor:
        """C[rows, :] for rows within a band of tiles; not to be written to."""
        blocks = [self._block(band, rows, cols) for cols in self._slices()]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)

    def _sampled_rows(self, count: int) -> Tensor:
        """Raw distances `[n, m]` of about `count` memories to all, from kept tiles if any."""
        rows = spread(self.size, count)
        sample = torch.empty(len(rows), self.size, dtype=self.dtype, device=self.device)
        bands = list(self._slices()) if self._kept else [slice(0, self.size)]
        for band in bands:
            first, last = torch.searchsorted(rows, torch.tensor([band.start, band.stop])).tolist()
            chosen = rows[first:last].to(self.device)
            for cols in self._slices() if first < last else ():
                sample[first:last, cols] = self._block(band, chosen, cols)
        sample[torch.arange(len(rows), device=self.device), rows.to(self.device)] = 0
        return sample

    def _panel_height(self, most: int) -> int:
        """How many full rows may be held at once, up to `most`."""
        return min(most, self._panel_bytes // (self.size * self.dtype.itemsize))

    def _block(self, band: slice, rows: slice | Tensor, cols: slice) -> Tensor:
        """C[rows, cols] for rows within a band of tiles, from a kept tile if there is one."""
        within: slice | Tensor = (
            slice(rows.start - band.start, rows.stop - band.start)
            if isinstance(rows, slice)
            else rows - band.start
        )
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
        return list(self._source.band(rows, columns))

    def _forget(self) -> None:
        """Let go of every tile: the source has better ones."""
        self._kept.clear()
        self._filled = False
        self._kept_bytes = 0

    def _slices(self, first: int = 0) -> Iterator[slice]:
        for start in range(first, self.size, self._tile):
            yield slice(start, min(start + self._tile, self.size))
