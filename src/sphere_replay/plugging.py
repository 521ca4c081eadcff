"""Plug-ins: files and modules of others that register parts under names, loaded when asked for.

Whoever writes one finds what to register with in `sphere_replay.plugins`.
"""

import hashlib
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from sphere_replay.codebase import digest_of_module
from sphere_replay.errors import ConfigError, UserError

GROUP = "sphere_replay.plugins"
"""Entry points of installed packages: each names a module that registers parts."""
VARIABLE = "SPHERE_PLUGINS"

Part = TypeVar("Part")


class PluginError(UserError, RuntimeError):
    """A plug-in that cannot be loaded, or is no longer what it was."""


@dataclass(frozen=True)
class Plugin:
    """What was loaded, in a form that another process can load as well."""

    source: str
    """An absolute path, or the name of a module."""
    digest: str
    """Of its source when it was loaded."""


_loaded: dict[str, Plugin] = {}


def register(kind: str, registry: MutableMapping[str, Part], name: str, part: Part) -> None:
    """Give a part its name, which must be free."""
    if not name or name != name.strip() or any(letter in name for letter in " ,=."):
        raise ConfigError(f"a {kind}'s name has no spaces, commas, dots or '=', got {name!r}")
    if name in registry:
        raise ConfigError(f"there is a {kind} {name!r} already: choose another name")
    registry[name] = part


def load(source: str | Path) -> Plugin:
    """Load a plug-in, a Python file or a module's name; once, however often it is asked for."""
    key = _key(source)
    if key not in _loaded:
        try:
            module = _from_file(Path(key)) if os.sep in key else importlib.import_module(key)
        except Exception as error:
            raise PluginError(f"plug-in {source}: {_told(error, key)}") from error
        _loaded[key] = Plugin(key, digest_of_module(module))
    return _loaded[key]


def load_everything(sources: Iterable[str | Path] = ()) -> None:
    """Load the plug-ins of installed packages, those of `$SPHERE_PLUGINS`, and the given ones."""
    for entry in entry_points(group=GROUP):
        try:
            load(entry.module)
        except PluginError as error:  # somebody else's mistake is no reason to stop
            warnings.warn(str(error), stacklevel=2)
    for source in [*filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)), *sources]:
        load(source)


def loaded() -> tuple[Plugin, ...]:
    """Everything that was loaded here, for another process to load again."""
    return tuple(_loaded.values())


def load_again(plugins: Iterable[Plugin]) -> None:
    """Load what another process has loaded; it must be the same still."""
    for plugin in plugins:
        if load(plugin.source).digest != plugin.digest:
            raise PluginError(
                f"plug-in {plugin.source} has changed since this began: start again, and its runs "
                "will be other ones"
            )


def _key(source: str | Path) -> str:
    path = Path(source).expanduser()
    if path.is_file():
        return str(path.resolve())
    text = str(source)
    if path.suffix == ".py" or not all(word.isidentifier() for word in text.split(".")):
        raise PluginError(f"there is no plug-in {text}: give a Python file, or a module's name")
    return text


def _from_file(path: Path) -> ModuleType:
    """A module that is not found by name; its neighbours are, after everything else."""
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        # Compiled here and now: Python's own cache may miss a change within the same second.
        exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _told(error: Exception, key: str) -> str:
    """The error in one line, with the last line of the plug-in that took part in it."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == key
    ]
    place = f"line {lines[-1]}: " if lines else ""
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return f"{place}{kind}{error}"
