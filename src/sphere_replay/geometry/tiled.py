"""Distances are made tile by tile and forgotten: any number of memories within a memory budget."""

from sphere_replay.geometry.sources import CostSource
from sphere_replay.geometry.tiles import TileGeometry

DEFAULT_BUDGET = 256 << 20
"""Bytes a tiled geometry may use beyond the features it was given."""


class TiledGeometry(TileGeometry):
    """Never more than `budget` bytes; what is left of it after the working set keeps tiles.

    The working set is the source's own copy of the points, a panel of rows for the neighbour search
    (a sixteenth of the budget) and two dozen tiles.
    """

    def __init__(self, source: CostSource, budget: int = DEFAULT_BUDGET) -> None:
        super().__init__(source, keep_bytes=0, panel_bytes=budget // 16)
        side = min(self._tile, self.size)
        working = source.held_bytes + 2 * self._panel_bytes + 24 * side**2 * source.dtype.itemsize
        self._keep_bytes = max(0, budget - working)
