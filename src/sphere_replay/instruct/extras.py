"""Optional dependencies of this package, or a sentence that says how to get them."""

import importlib
from typing import Any

from sphere_replay.usage import DataError


def require(module: str) -> Any:
    """Import an optional dependency, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise DataError(
            f"{error.name} is not installed; instruction tuning needs it: "
            "pip install 'sphere-replay[instruct]'"
        ) from error
