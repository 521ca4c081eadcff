"""From loss increments and features to replay weights: Algorithm 1, lines 4 to 9."""

from sphere_replay.allocation.allocate import allocate
from sphere_replay.allocation.controls import Control
from sphere_replay.allocation.recipe import Sphere
from sphere_replay.allocation.result import Allocation
from sphere_replay.allocation.sampling import Sample, Scheme, inclusion_probabilities
from sphere_replay.allocation.scales import (
    FixedScales,
    NeighborScales,
    QuantileScales,
    Scales,
    SpreadScales,
)

__all__ = [
    "Allocation",
    "Control",
    "FixedScales",
    "NeighborScales",
    "QuantileScales",
    "Sample",
    "Scales",
    "Scheme",
    "Sphere",
    "SpreadScales",
    "allocate",
    "inclusion_probabilities",
]
