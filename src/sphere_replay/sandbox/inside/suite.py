"""What a test file says, known before any program runs: its imports and the code of its tests."""

import ast
import builtins
import importlib
import warnings
from collections.abc import Iterable, Iterator
from operator import is_
from types import CodeType, FunctionType
from typing import Any


class Suite:
    """A test file whose tests share an interpreter with a program that may have changed them."""

    def __init__(self, tests: str, path: str) -> None:
        self._imports: dict[str, object] = {}
        self._codes: list[CodeType] = []
        self._functions: list[tuple[FunctionType, CodeType]] = []
        self._items: list[dict[str, Any]] = []
        self._globals: dict[str, Any] = {}
        self._hooks: list[tuple[list[object], list[object]]] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(tests)
                self._codes = list(codes_within(compile(tests, path, "exec")))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return  # pytest will say so
        bound = [name for statement in tree.body for name in _rebound_by(statement)]
        for name, value in _imported(tree.body):
            if name not in bound:
                self._imports[name] = value

    def watch(self, plugins: Any, items: Iterable[Any]) -> None:
        """Remember who takes part, before the program is loaded, and then what was collected."""
        if not self._hooks:
            callers = [c for c in vars(plugins.hook).values() if hasattr(c, "_hookimpls")]
            self._hooks = [(caller._hookimpls, list(caller._hookimpls)) for caller in callers]
        for item in items:
            function = getattr(item, "function", None)
            if isinstance(function, FunctionType):
                self._functions.append((function, function.__code__))
                self._globals = function.__globals__
            self._items.append(vars(item))

    def change(self) -> str | None:
        """What is not as the file has it; None: nothing."""
        for function, code in self._functions:
            if function.__code__ is not code or code not in self._codes:
                return f"the code of {code.co_name}"
        for fields in self._items:
            if "runtest" in fields or "ihook" in fields:
                return "how a test runs"
        for now, before in self._hooks:
            if len(now) != len(before) or not all(map(is_, now, before)):
                return "a plugin"
        if not self._globals:
            return None
        if self._globals.get("__builtins__") is not vars(builtins):
            return "the built-ins of the tests"
        for name, value in self._imports.items():
            if self._globals.get(name) is not value:
                return f"{name} of the tests"
        return None


def codes_within(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of all functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_within(constant)


def _imported(body: Iterable[ast.stmt]) -> Iterator[tuple[str, object]]:
    """Names that imports bind, but those of the program, and their values."""
    for statement in body:
        try:
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    if alias.name != "solution":
                        module = importlib.import_module(alias.name)
                        top = importlib.import_module(alias.name.partition(".")[0])
                        yield alias.asname or top.__name__, module if alias.asname else top
            elif isinstance(statement, ast.ImportFrom) and statement.module != "solution":
                module = importlib.import_module(statement.module or "")
                for alias in statement.names:
                    if hasattr(module, alias.name):
                        yield alias.asname or alias.name, getattr(module, alias.name)
        except (ImportError, ValueError):
            continue  # the tests will say so


def _rebound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Global):
            yield from node.names
