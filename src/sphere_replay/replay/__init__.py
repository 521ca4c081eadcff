"""Which memories are replayed, and at what strength."""

from sphere_replay.replay.economy import Economy, Labels, Scorer
from sphere_replay.replay.engine import Draw, Engine
from sphere_replay.replay.loop import Replay
from sphere_replay.replay.passing import alike_in_training
from sphere_replay.replay.schedule import Schedule
from sphere_replay.replay.selections import (
    SELECTIONS,
    UNLABELLED,
    LossProportional,
    MirProportional,
    MirTop,
    Selection,
    SphereSelection,
    Uniform,
    Weighting,
    selection_named,
)
from sphere_replay.replay.settings import ReplaySettings, ScheduledSettings
from sphere_replay.replay.weighing import Weigher

__all__ = [
    "SELECTIONS",
    "UNLABELLED",
    "Draw",
    "Economy",
    "Engine",
    "Labels",
    "LossProportional",
    "MirProportional",
    "MirTop",
    "Replay",
    "ReplaySettings",
    "Schedule",
    "ScheduledSettings",
    "Scorer",
    "Selection",
    "SphereSelection",
    "Uniform",
    "Weigher",
    "Weighting",
    "alike_in_training",
    "selection_named",
]
