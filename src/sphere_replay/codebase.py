"""Whose code a run is made of: this package as it is now, and digests of everybody else's.

A result belongs to the code that made it. The version of this package, and a digest of the source
of each part that comes from elsewhere, are in a run's identity; the commit and a digest of this
package are in its manifest, for it is edited more often than its results change.
"""

import ast
import hashlib
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from sphere_replay import __version__
from sphere_replay.errors import ConfigError

_HOME = Path(__file__).parent
_INSTALLED = ("site-packages", "dist-packages")
_DIGITS = 16


@dataclass(frozen=True)
class Code:
    """A state of this package."""

    version: str
    commit: str | None
    """The last one that changed the package, where it lies in a repository."""
    digest: str
    """Of its source: changes that nobody has committed count too."""

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> "Code | None":
        """The state that a run's manifest tells of; None of one that tells nothing."""
        if "code" not in manifest:
            return None
        return cls(manifest["sphere_replay"], manifest["commit"], manifest["code"])

    def __str__(self) -> str:
        if self.commit is None:
            return f"version {self.version}, source {self.digest}"
        return f"version {self.version}, commit {self.commit}"


@cache
def this_code() -> Code:
    """The package that is running."""
    digest = _digest(sorted(_HOME.rglob("*.py")), _HOME)
    return Code(__version__, _commit(), digest[:_DIGITS])


def warning_of_others(made_by: Iterable[Code | None]) -> str:
    """A sentence about results of which some were made by another state of the package, or ''.

    Those that nobody knows the origin of (None) are passed over.
    """
    known = [code for code in made_by if code is not None]
    others = [code for code in known if code.digest != this_code().digest]
    if not others:
        return ""
    states = ", ".join(sorted({str(code) for code in others}))
    now = str(this_code())
    changed = " and uncommitted changes" if now in states else ""
    return (
        f"{len(others)} of {len(known)} results were made by other code of sphere-replay than this "
        f"({now}{changed}): {states}"
    )


def digest_of_others(part: object) -> str | None:
    """SHA-256 of the code behind a class or function; None for one of this package.

    It covers the module or package that the part is defined in, and whatever that imports which is
    neither installed nor of the standard library: the author's own files.
    """
    name = getattr(part, "__module__", None) or ""
    if name.partition(".")[0] == __package__:
        return None
    module = sys.modules.get(name)
    if module is None or not _home_of(module):
        raise ConfigError(
            f"{getattr(part, '__qualname__', part)!r} is defined in no file, so nobody could tell "
            "when it changes: put it into one"
        )
    return digest_of_module(module)


@cache
def digest_of_module(module: ModuleType) -> str:
    """The same for a module, as it was when it was first asked about."""
    content, seen = hashlib.sha256(), set[Path]()
    waiting = _home_of(module)
    while waiting:
        root = waiting.pop()
        if root not in seen:
            seen.add(root)
            files = sorted(root.rglob("*.py")) if root.is_dir() else [root]
            content.update(_digest(files, root.parent).encode())
            names = sorted({name for file in files for name in _imported(file)})
            waiting += [path for name in names if _is_own(name) for path in _roots(name)]
    return content.hexdigest()


def _home_of(module: ModuleType) -> list[Path]:
    """What a module is part of, or its file alone if that cannot be told."""
    file = getattr(module, "__file__", None)
    return _roots(module.__name__.partition(".")[0]) or ([Path(file)] if file else [])


def _digest(files: Iterable[Path], home: Path) -> str:
    content = hashlib.sha256()
    for file in files:
        source = file.read_bytes()
        content.update(f"{file.relative_to(home).as_posix()}:{len(source)}\n".encode() + source)
    return content.hexdigest()


def _roots(name: str) -> list[Path]:
    """The file of a module that is no part of a package, or the folders of a package."""
    module = sys.modules.get(name)
    if module is not None:
        folders, file = getattr(module, "__path__", None), getattr(module, "__file__", None)
    else:
        spec = find_spec(name)
        folders = getattr(spec, "submodule_search_locations", None)
        file = spec.origin if spec is not None and spec.has_location else None
    return [Path(folder) for folder in folders] if folders else [Path(file)] if file else []


def _imported(file: Path) -> Iterator[str]:
    """First words of the modules that a file imports, anywhere in it."""
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:  # a template, say: whoever imports it will be told
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _is_own(name: str) -> bool:
    if name == __package__ or name in sys.stdlib_module_names:
        return False
    standard = Path(sysconfig.get_path("stdlib"))
    roots = _roots(name)
    return bool(roots) and not any(
        set(_INSTALLED) & set(root.parts) or root.is_relative_to(standard) for root in roots
    )


def _commit() -> str | None:
    command = ["git", "-C", str(_HOME), "log", "-1", "--format=%H", "--", "."]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()[:_DIGITS] or None
