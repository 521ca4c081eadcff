"""The module `solution` as tests import it: names of a program at the other end of a wire."""

import ast
import builtins
import importlib.abc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .peer import Peer


class Solution(ModuleType):
    """Its attributes are the program's."""

    _sphere_peer: Any
    _sphere_tests: str
    _sphere_originals: dict[str, object]
    """What was there before tests set it: deleting brings it back, as patches expect."""

    def __init__(self, peer: Peer, tests: str) -> None:
        super().__init__("solution")
        vars(self).update(_sphere_peer=peer, _sphere_tests=tests, _sphere_originals={})

    def __getattr__(self, name: str) -> object:
        if name == "__all__":
            return self._star()
        if name.startswith("__"):
            raise AttributeError(name)
        return self._sphere_peer.ask("get", 0, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__"):
            vars(self)[name] = value  # the import system's own
        else:
            if name not in self._sphere_originals and hasattr(self, name):
                self._sphere_originals[name] = getattr(self, name)
            self._sphere_peer.ask("set", 0, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._sphere_originals:
            self._sphere_peer.ask("set", 0, name, self._sphere_originals.pop(name))
        else:
            self._sphere_peer.ask("del", 0, name)

    def _star(self) -> list[str]:
        """What `from solution import *` gives: names that the tests use and have nowhere else.

        Thus no program replaces `sorted`, `math` or `pytest` in the tests.
        """
        wanted = _free_names(self._sphere_tests)
        names = self._sphere_peer.ask("names", 0)
        return [name for name in names if type(name) is str and name in wanted]


@dataclass(frozen=True)
class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `solution` on the wire."""

    module: Solution

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "solution" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        self.module._sphere_peer.load()


def install(peer: Peer, tests: str) -> None:
    """From now on `import solution` means the program at the other end of a wire."""
    sys.meta_path.insert(0, _Finder(Solution(peer, tests)))


def _free_names(tests: str) -> set[str]:
    tree = ast.parse(tests)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    bound = {name for statement in tree.body for name in _bound_by(statement)}
    return used - bound - set(vars(builtins))


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif not isinstance(statement, ast.Expr):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
