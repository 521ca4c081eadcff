"""From loss increments and features to replay weights: Algorithm 1, lines 4 to 9."""

from sphere_replay.allocation.allocate import allocate
from sphere_replay.allocation.backing import Strength, Votes
from sphere_replay.allocation.controls import Control
from sphere_replay.allocation.recipe import Sphere
from sphere_replay.allocation.result import Allocation, Certificate
from sphere_replay.allocation.sampling import Sample, Scheme, inclusion_probabilities
from sphere_replay.allocation.scales import (
    CalibratedScales,
    FixedScales,
    NeighborScales,
    QuantileScales,
    Scales,
    SpreadScales,
    TemperatureRule,
)
from sphere_replay.allocation.sharded import ShardedAllocation, allocate_sharded

__all__ = [
    "Allocation",
    "CalibratedScales",
    "Certificate",
    "Control",
    "FixedScales",
    "NeighborScales",
    "QuantileScales",
    "Sample",
    "Scales",
    "Scheme",
    "ShardedAllocation",
    "Sphere",
    "SpreadScales",
    "Strength",
    "TemperatureRule",
    "Votes",
    "allocate",
    "allocate_sharded",
    "inclusion_probabilities",
]
