"""Optional dependencies, or a sentence that says how to get them."""

import importlib
from typing import Any

from sphere_replay.errors import DataError


def require(module: str, extra: str) -> Any:
    """Import an optional dependency, or say which extra of the package brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise DataError(
            f"{error.name} is not installed; this needs it: pip install 'sphere-replay[{extra}]'"
        ) from error
