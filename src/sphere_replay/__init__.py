"""SPHERE: replay allocation for continual learning that asks the neighbours first.

from sphere_replay import Sphere, allocate

allocation = allocate(increments, features, Sphere.vision())
indices = allocation.draw(32, replacement=False, generator=generator)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphere_replay.allocation import Allocation, Control, Sphere, allocate
    from sphere_replay.memory import Memory
    from sphere_replay.replay import Economy, Replay

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "Control",
    "Economy",
    "Memory",
    "Replay",
    "Sphere",
    "__version__",
    "allocate",
]

_ROOMS = {
    **dict.fromkeys(("Allocation", "Control", "Sphere", "allocate"), "allocation"),
    "Memory": "memory",
    **dict.fromkeys(("Economy", "Replay"), "replay"),
}
"""Where the public names live; torch is loaded with the first of them, not with the package."""


if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> object:
        """A public name, from its room."""
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Public names are seen before they are loaded."""
        return sorted({*globals(), *__all__})
