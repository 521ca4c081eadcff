"""Bare asserts and check functions as pytest files of several nodes, and what sources declare.

Nothing here runs anything: sources of unknown origin are parsed, rearranged and written again.
"""

import ast
import warnings
from collections.abc import Iterator, Sequence

UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What parsing a text that is no Python may raise."""


def parse(source: str) -> ast.Module:
    """The tree of a source; one of `UNPARSABLE` where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a strange escape is its author's business
        return ast.parse(source)


def imported_modules(source: str) -> set[str]:
    """Top-level names of all modules that a source imports, anywhere; relative ones as `.`."""
    names = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." if node.level else (node.module or "").partition(".")[0])
    return names


def with_solution(tests: str) -> str:
    """The test file; it imports all names of `solution` unless it imports from there already."""
    try:
        if "solution" in imported_modules(tests):
            return tests
    except UNPARSABLE:
        return tests
    return f"from solution import *\n\n{tests}"


def file_from_asserts(asserts: Sequence[str], setup: str = "") -> str:
    """A pytest file with one node per assert, after `setup`, which sees the program's names."""
    head = parse("from solution import *").body + parse(setup).body
    return _file(head, [parse(text).body for text in asserts])


def file_from_check(source: str, entry_point: str) -> str:
    """A pytest file from a function `check(candidate)`: one node per statement that asserts.

    Statements without an assert prepare those below them, and are repeated in each of their nodes.
    Asserts of a constant (`assert True, "..."`) are left out: every program would pass them.

    Args:
        source: A module that defines `check`, and maybe helpers.
        entry_point: An expression for the candidate, such as `add` or `Solution().add`.
    """
    module = parse(source)
    checks = [s for s in module.body if isinstance(s, ast.FunctionDef) and s.name == "check"]
    if len(checks) != 1 or len(checks[0].args.args) != 1:
        raise ValueError("the tests should define one function check(candidate)")
    check = checks[0]
    setup = parse(f"{check.args.args[0].arg} = {entry_point}").body
    nodes = []
    for statement in check.body:
        if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Constant):
            continue
        if any(isinstance(inner, ast.Assert) for inner in ast.walk(statement)):
            nodes.append([*setup, statement])
        else:
            setup = [*setup, statement]
    head = parse("from solution import *").body
    return _file(head + [s for s in module.body if s is not check], nodes)


def called_declaration(reference: str, call: str) -> str:
    """`def f(a, b):` of the first of the reference's own functions that is called in `call`."""
    declared = dict(_declarations(reference))
    for node in ast.walk(parse(call)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in declared:
            return declared[ast.unparse(node.func)]
    return ""


def _declarations(source: str) -> Iterator[tuple[str, str]]:
    for statement in parse(source).body:
        if isinstance(statement, ast.FunctionDef):
            yield statement.name, f"def {statement.name}({ast.unparse(statement.args)}):"


def _file(head: list[ast.stmt], nodes: list[list[ast.stmt]]) -> str:
    body = list(head)
    for number, statements in enumerate(nodes, 1):
        # From a parsed function: what else it needs differs between versions of Python.
        function = parse(f"def test_{number}(): pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        function.body = statements
        body.append(function)
    return ast.unparse(ast.Module(body=body, type_ignores=[])) + "\n"
