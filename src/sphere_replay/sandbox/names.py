"""Names of tests that can be told without running anything, and a stand-in for the program."""

import ast
from collections.abc import Sequence
from typing import TypeGuard

STAND_IN = """
class _Kind(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _make(name)

    def __iter__(cls):
        return iter(())


def _make(name):
    return _Kind(name, (_Anything,), {})


class _Anything(metaclass=_Kind):
    def __init__(self, *positional, **named):
        pass

    def __call__(self, *positional, **named):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __iter__(self):
        return iter(())


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _make(name)
"""
"""A module `solution` that has every name: enough to collect tests, never to pass them."""


def visible_tests(tests: str) -> list[str]:
    """Tests as the source names them, without parameters; [] if it is no Python."""
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for statement in tree.body:
        if _is_test(statement):
            found.append(statement.name)
        elif isinstance(statement, ast.ClassDef) and (
            statement.name.startswith("Test") or _is_unittest(statement)
        ):
            members = [member.name for member in statement.body if _is_test(member)]
            found += [f"{statement.name}::{member}" for member in members]
    return list(dict.fromkeys(found))


def only_nodes(tests: str, nodes: Sequence[str]) -> str:
    """A test file without the tests that nobody asks for, unless another part uses their names."""
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return tests
    wanted = {node.partition("[")[0] for node in nodes}
    kept: list[ast.stmt] = []
    for statement in tree.body:
        if _is_test(statement) and statement.name not in wanted:
            continue
        if isinstance(statement, ast.ClassDef):
            name = statement.name
            tested = [member for member in statement.body if _is_test(member)]
            unwanted = [member for member in tested if f"{name}::{member.name}" not in wanted]
            statement.body = [member for member in statement.body if member not in unwanted]
            if tested and len(unwanted) == len(tested):
                continue
        kept.append(statement)
    shorter = ast.Module(body=kept, type_ignores=[])
    names = {node.id for node in ast.walk(shorter) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(shorter) if isinstance(node, ast.Attribute)}
    gone = {name.rpartition("::")[2] for name in visible_tests(tests)} - {
        name.rpartition("::")[2] for name in wanted
    }
    return tests if names & gone else ast.unparse(shorter) + "\n"


def _is_test(statement: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return isinstance(statement, kinds) and statement.name.startswith("test")


def _is_unittest(statement: ast.ClassDef) -> bool:
    return any(ast.unparse(base).rpartition(".")[2] == "TestCase" for base in statement.bases)
