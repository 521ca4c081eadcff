"""Expressions with one thing changed: the near misses of a micro-problem's reference.

Only expressions that the micro-problems themselves are made of come here, so they are evaluated in
this process; programs of models never are.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_HEAD = "def f({argument}):\n    return "
_FUNCTIONS = {function.__name__: function for function in (abs, len, max, min, sorted, sum)}
_OTHER_OPERATOR: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.FloorDiv,
    ast.FloorDiv: ast.Mod,
}
_OTHER_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Gt: ast.GtE,
    ast.Lt: ast.LtE,
    ast.Eq: ast.NotEq,
}
_OTHER_FUNCTION = {"max": "min", "min": "max"}


@dataclass(frozen=True)
class Failure:
    """What an expression that raises gives: equal to no answer."""

    error: str


def program_of(argument: str, expression: str) -> str:
    """The program that returns an expression."""
    return f"{_HEAD.format(argument=argument)}{expression}\n"


def expression_of(program: str) -> str:
    """The expression that a program of `program_of` returns."""
    return program.partition("return ")[2].rstrip("\n")


def evaluate(expression: str, argument: str, value: object) -> object:
    """The value of one of our own expressions, or a `Failure`."""
    try:
        return eval(expression, {"__builtins__": _FUNCTIONS, argument: value})
    except (ArithmeticError, LookupError, NameError, TypeError, ValueError) as error:
        return Failure(type(error).__name__)


def near_misses(expression: str) -> list[str]:
    """Every expression that one change makes of this one; each once, this one excluded."""
    tree = ast.parse(expression, mode="eval").body
    found = dict.fromkeys(ast.unparse(changed) for changed in _changes(tree))
    found.pop(ast.unparse(tree), None)
    return list(found)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """The node changed at its root, then with one of its parts changed, however deep."""
    yield from _changes_here(node)
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.expr | ast.comprehension):
            yield from (_with(node, name, part) for part in _changes(value))
        elif isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, ast.expr | ast.comprehension):
                    rest = value[:place], value[place + 1 :]
                    for part in _changes(item):
                        yield _with(node, name, [*rest[0], part, *rest[1]])


def _changes_here(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp():
            if (operator := _OTHER_OPERATOR.get(type(node.op))) is not None:
                yield _with(node, "op", operator())
            yield node.left
            yield node.right
        case ast.Compare():
            if (comparison := _OTHER_COMPARISON.get(type(node.ops[0]))) is not None:
                yield _with(node, "ops", [comparison()])
        case ast.IfExp():
            yield ast.IfExp(test=node.test, body=node.orelse, orelse=node.body)
            yield node.body
            yield node.orelse
        case ast.Call(func=ast.Name(id=name)):
            if name in _OTHER_FUNCTION:
                yield _with(node, "func", ast.Name(id=_OTHER_FUNCTION[name]))
            yield node.args[0]
        case ast.Call(func=ast.Attribute(value=owner)) | ast.Subscript(value=owner):
            yield owner
        case ast.comprehension(ifs=[_, *_]):
            yield _with(node, "ifs", [])
        case ast.Constant(value=int(number)):
            yield ast.Constant(value=number + 1)
            if number > 0:  # a minus in front is a node of its own
                yield ast.Constant(value=number - 1)


def _with(node: ast.AST, name: str, value: object) -> ast.AST:
    """A copy of a node with another value of one field."""
    return type(node)(**{**dict(ast.iter_fields(node)), name: value})
