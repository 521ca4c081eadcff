"""Which memories are replayed, and at what strength."""

from sphere_replay.replay.controller import Draw, Replay
from sphere_replay.replay.selections import (
    SELECTIONS,
    LossProportional,
    MirProportional,
    MirTop,
    Selection,
    SphereSelection,
    Uniform,
    Weighting,
    selection_named,
)
from sphere_replay.replay.sphere import SphereReplay

__all__ = [
    "SELECTIONS",
    "Draw",
    "LossProportional",
    "MirProportional",
    "MirTop",
    "Replay",
    "Selection",
    "SphereReplay",
    "SphereSelection",
    "Uniform",
    "Weighting",
    "selection_named",
]
