"""SPHERE: replay allocation for continual learning that asks the neighbours first.

from sphere_replay import Sphere, allocate

allocation = allocate(increments, features, Sphere.vision())
indices = allocation.draw(32, replacement=False, generator=generator)
"""

from sphere_replay.allocation import Allocation, Control, Sphere, allocate
from sphere_replay.memory import Memory
from sphere_replay.replay import Replay

__version__ = "0.1.0"

__all__ = ["Allocation", "Control", "Memory", "Replay", "Sphere", "__version__", "allocate"]
