"""What a program did to the containers it was given, done to the originals."""

from collections import deque
from typing import Any


def merge(old: Any, new: Any) -> None:
    """Make a container equal to another of its type, keeping it and the containers in it."""
    if type(old) is not type(new):
        raise TypeError(f"a {type(new).__name__} for a {type(old).__name__}")
    if isinstance(old, list | deque | bytearray):
        kept = [_merged(was, now) for was, now in zip(old, new, strict=False)]
        added = list(new)[len(kept) :]
        old.clear()
        old.extend([*kept, *added])
    elif isinstance(old, dict):
        content = {key: _merged(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(content)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    else:
        raise TypeError(f"a {type(old).__name__} does not change")


def _merged(old: Any, new: Any) -> Any:
    if type(old) is type(new) and isinstance(old, list | dict | set | deque | bytearray):
        merge(old, new)
        return old
    return new
