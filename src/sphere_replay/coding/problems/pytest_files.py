"""Bare asserts and check functions as pytest files of several nodes, and what sources declare.

Nothing here runs anything: sources of unknown origin are parsed, rearranged and written again.
"""

import ast
import builtins
import warnings
from collections.abc import Iterable, Iterator, Sequence

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


def narrowed(tests: str, reference: str, given: str = "", own: Iterable[str] = ()) -> str:
    """Tests that take from a program nothing but what it is there for.

    `from solution import *` would let a program bring its own `math`, or the very function that
    compares. So what the question gives is copied into the tests, what the reference only imports
    is imported by the tests themselves, and the rest is imported by name.

    Args:
        tests: A pytest file.
        reference: A program that passes.
        given: Code that comes with the question.
        own: Names in it that are the program's to define.
    """
    try:
        tree, program, help_ = parse(tests), parse(reference).body, parse(given).body
    except UNPARSABLE:
        return tests
    if not any(map(_is_star, tree.body)):
        return tests
    wanted = _free_names(tree)
    offered = {name: s for s in help_ for name in _defined_by(s) if name not in set(own)}
    copied: list[ast.stmt] = []
    while new := [offered[n] for n in offered if n in wanted and offered[n] not in copied]:
        copied += new
        wanted |= _free_names(ast.Module(body=new, type_ignores=[]))
    wanted -= {name for statement in copied for name in _defined_by(statement)}
    imports: list[ast.stmt] = [
        s for s in help_ if copied and isinstance(s, ast.Import | ast.ImportFrom)
    ]
    wanted = {name for name in wanted if not any(_imports_of(s, {name}) for s in imports)}
    imports += [part for statement in program for part in _imports_of(statement, wanted)]
    defined = [name for statement in program for name in _defined_by(statement)]
    names = [name for name in dict.fromkeys(defined) if name in wanted]
    if not names:  # a program that is asked for its own `sum`
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names = [name for name in dict.fromkeys(defined) if name in used]
    head = parse(f"from solution import {', '.join(names)}" if names else "import solution").body
    ordered = [statement for statement in help_ if statement in copied]
    rest = [statement for statement in tree.body if not _is_star(statement)]
    return ast.unparse(ast.Module(body=[*imports, *head, *ordered, *rest], type_ignores=[])) + "\n"


def _is_star(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.ImportFrom)
        and statement.module == "solution"
        and statement.names[0].name == "*"
    )


def _free_names(tree: ast.AST) -> set[str]:
    """Names that code uses and does not bind anywhere."""
    used: set[str] = set()
    bound = set(vars(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
    return used - bound


def _defined_by(statement: ast.stmt) -> list[str]:
    """Names that a statement binds, in an order that does not change from run to run."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return []
    stored = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
    return [node.id for node in stored if isinstance(node.ctx, ast.Store)]


def _imports_of(statement: ast.stmt, wanted: set[str]) -> list[ast.stmt]:
    """An import, cut down to the names that are wanted."""
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return []
    kept = [a for a in statement.names if (a.asname or a.name.partition(".")[0]) in wanted]
    if isinstance(statement, ast.Import):
        return [ast.Import(kept)] if kept else []
    return [ast.ImportFrom(statement.module, kept, statement.level)] if kept else []


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
