"""Optional dependencies, or a sentence that says how to get them."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sphere_replay.errors import DataError


def require(module: str, extra: str) -> Any:
    """Import an optional dependency, or say which extra of the package brings it."""
    with needing(extra):
        return importlib.import_module(module)


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Say which extra of the package brings a module that the block does not find."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sphere_replay"):
            raise  # a mistake of ours
        raise DataError(
            f"{error.name} is not installed; this needs it: pip install 'sphere-replay[{extra}]'"
        ) from error
