"""Classes and modules of the standard library by name, so that both processes mean their own.

Only names go over the wire. A program can thus make the judge use nothing but the judge's own
`collections.Counter`, or one of Python's exceptions.
"""

import importlib
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType

from .codec import WireError

_MODULES = frozenset(
    [
        *("abc", "bisect", "builtins", "calendar", "cmath", "collections", "collections.abc"),
        *("copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq"),
        *("itertools", "json", "math", "numbers", "operator", "random", "re", "statistics"),
        *("string", "time", "typing", "uuid"),
    ]
)
"""Modules without side effects, none of which has values that are equal to everything."""


def name_of(value: object) -> str | None:
    """`module:name` of a class or function, `module:` of a module; None if it has to stay."""
    if isinstance(value, ModuleType):
        known = value.__name__ in _MODULES and sys.modules.get(value.__name__) is value
        return f"{value.__name__}:" if known else None
    if not isinstance(value, type | FunctionType | BuiltinFunctionType):
        return None
    place, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if type(place) is not str or type(name) is not str:
        return None
    for module in (place, place.lstrip("_")):
        if module in _MODULES and getattr(sys.modules.get(module), name, None) is value:
            return f"{module}:{name}"
    return None


def find(name: object) -> object:
    """What this process has under a name; WireError if it has nothing, or hands out no such."""
    module, colon, attribute = name.partition(":") if type(name) is str else ("", "", "")
    if not colon:
        raise WireError("no name")
    if module not in _MODULES:
        raise WireError(f"no {name} to hand out")
    place = importlib.import_module(module)
    found = getattr(place, attribute, None) if attribute else place
    if found is None:
        raise WireError(f"no {name} to hand out")
    return found


def find_exception(module: str, name: str) -> type[BaseException] | None:
    """An exception of any module of the standard library that is loaded here; None: no such."""
    if module.partition(".")[0] not in sys.stdlib_module_names or module not in sys.modules:
        return None
    found = vars(sys.modules[module]).get(name)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
