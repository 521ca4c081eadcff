"""Every distance is computed once and kept: the fastest geometry while m²/2 numbers fit."""

from sphere_replay.geometry.sources import CostSource
from sphere_replay.geometry.tiles import TileGeometry


class DenseGeometry(TileGeometry):
    """The upper triangle of C, in memory."""

    def __init__(self, source: CostSource) -> None:
        super().__init__(source, keep_bytes=None)
