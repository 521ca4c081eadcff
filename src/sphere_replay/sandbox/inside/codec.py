"""Plain data as text, between two processes of which one must not trust the other.

JSON carries None, truth values, numbers, texts and lists as they are. Everything else is an object
with one key, its tag: `{"t": [1, 2]}` is a tuple. Types are exact: an instance of a subclass is no
plain data. What is none stays where it is, and goes by number; whoever encodes or decodes says how.
Reading makes values of the types below and calls no code but their constructors.
"""

import binascii
import datetime
import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from types import NoneType
from typing import Any

DEEPEST = 200
"""Containers within containers."""
_MOST_HEX = 1 << 20

PLAIN: tuple[Any, ...] = (
    *(bool, int, float, complex, str, bytes),
    *(tuple, list, dict, set, frozenset),
)
"""Types that classes of a program may derive from, and still be fetched as plain data."""
_SCALARS = frozenset({NoneType, bool, int, float, str})
_spell = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_read = json.JSONDecoder().raw_decode


class WireError(Exception):
    """A message that nobody who keeps to the rules sends."""


class UnplainError(BaseException):
    """A value that cannot be sent, and why; no `except Exception` of a test takes it for a pass."""


Exile = Callable[[object], dict[str, Any]]
"""A value that is not plain -> its tagged stand-in; UnplainError if it has none."""
Return = Callable[[str, Any], object]
"""A tag that is not of plain data, and its content -> the value; WireError if it means nothing."""


def encode(value: object, exile: Exile) -> str:
    """A value as text."""
    tree = _tree(value, exile, DEEPEST)
    try:
        return _spell(tree)
    except ValueError:  # Python spells no number of more than some thousand digits
        return _spell(_tree(value, exile, DEEPEST, huge=True))


def decode(text: str, home: Return) -> Any:
    """The value of a text; WireError if it is none."""
    try:
        tree, end = _read(text)
        if end != len(text):
            raise WireError("more than one value")
        return _value(tree, home, DEEPEST + 8) if "{" in text else tree
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise WireError(f"no value: {type(error).__name__}") from None


def _tree(value: Any, exile: Exile, depth: int, huge: bool = False) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        if huge and kind is int and value.bit_length() > 4096:
            if value.bit_length() > 4 * _MOST_HEX:
                raise UnplainError("a number of more than a million digits")
            return {"i": hex(value)}
        return value
    if kind is list:
        if not huge and _SCALARS.issuperset(map(type, value)):
            return value
        return _trees(value, exile, depth, huge)
    tag = _TAG_OF.get(kind)
    if tag is None:
        return exile(value)
    return {tag: _PARTS[tag](value, lambda parts: _trees(parts, exile, depth, huge))}


def _trees(values: Any, exile: Exile, depth: int, huge: bool) -> list[Any]:
    if depth == 0:
        raise UnplainError("containers within containers without end")
    if not huge and _SCALARS.issuperset(map(type, values)):
        return list(values)
    return [_tree(value, exile, depth - 1, huge) for value in list(values)]


def _value(tree: Any, home: Return, depth: int) -> Any:
    kind = type(tree)
    if kind is list:
        if depth == 0:
            raise WireError("too deep")
        if _SCALARS.issuperset(map(type, tree)):
            return tree
        return [_value(part, home, depth - 1) for part in tree]
    if kind is not dict:
        return tree
    if depth == 0 or len(tree) != 1:
        raise WireError("no such object")
    ((tag, content),) = tree.items()
    if tag not in _MADE:
        return home(tag, content)
    return _MADE[tag](_value(content, home, depth - 1))


def _checked(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (type(value) is bool and kind is not bool):
        raise WireError(f"a {type(value).__name__} out of place")
    return value


def _list(value: Any, *kinds: Any) -> list[Any]:
    """A list of as many values as there are kinds, each of its kind."""
    if type(value) is not list or len(value) != len(kinds):
        raise WireError("a list of another length")
    return [_checked(kind, part) for kind, part in zip(kinds, value, strict=True)]


def _pairs(value: Any) -> Any:
    keys, values = _list(value, list, list)
    return zip(keys, values, strict=True)


def _defaultdict(value: Any) -> Any:
    made: defaultdict[Any, Any] = defaultdict(None)
    made.update(_pairs(value))
    return made


def _hex(value: Any) -> int:
    if len(_checked(str, value)) > _MOST_HEX + 3:
        raise WireError("a number of more than a million digits")
    return int(value, 16)


def _moment(value: Any) -> Any:
    name, *numbers = _checked(list, value)
    if name == "timedelta":
        return datetime.timedelta(*_list(numbers, int, int, int))
    kinds: dict[str, Any] = {
        "date": datetime.date,
        "time": datetime.time,
        "datetime": datetime.datetime,
    }
    if name not in kinds:
        raise WireError("no such moment")
    return kinds[name].fromisoformat(*_list(numbers, str))


def _parts_of_moment(value: Any, _: Any) -> list[Any]:
    name = type(value).__name__
    if name == "timedelta":
        return [name, value.days, value.seconds, value.microseconds]
    if name != "date" and value.tzinfo not in (None, datetime.UTC):
        raise UnplainError("a time of another zone")
    return [name, value.isoformat()]


def _parts_of_pairs(value: Any, trees: Any) -> list[Any]:
    return [trees(value), trees(value.values())]


_number = (int, float)
_TAG_OF: dict[type, str] = {
    tuple: "t",
    set: "s",
    frozenset: "f",
    dict: "d",
    OrderedDict: "O",
    Counter: "C",
    defaultdict: "D",
    deque: "q",
    bytes: "b",
    bytearray: "a",
    complex: "c",
    range: "r",
    slice: "l",
    type(...): "e",
    Decimal: "n",
    Fraction: "x",
    datetime.date: "w",
    datetime.time: "w",
    datetime.datetime: "w",
    datetime.timedelta: "w",
}
_PARTS: dict[str, Callable[[Any, Callable[[Any], list[Any]]], Any]] = {
    **dict.fromkeys("tsf", lambda value, trees: trees(value)),
    **dict.fromkeys("dOCD", _parts_of_pairs),
    "q": lambda value, trees: [trees(value), value.maxlen],
    **dict.fromkeys("ba", lambda value, _: binascii.b2a_base64(value, newline=False).decode()),
    "c": lambda value, _: [value.real, value.imag],
    "r": lambda value, trees: trees([value.start, value.stop, value.step]),
    "l": lambda value, trees: trees([value.start, value.stop, value.step]),
    "e": lambda value, _: 0,
    "n": lambda value, _: str(value),
    "x": lambda value, trees: trees([value.numerator, value.denominator]),
    "w": _parts_of_moment,
}
_MADE: dict[str, Callable[[Any], object]] = {
    "i": _hex,
    "t": lambda value: tuple(_checked(list, value)),
    "s": lambda value: set(_checked(list, value)),
    "f": lambda value: frozenset(_checked(list, value)),
    "d": lambda value: dict(_pairs(value)),
    "O": lambda value: OrderedDict(_pairs(value)),
    "C": lambda value: Counter(dict(_pairs(value))),
    "D": _defaultdict,
    "q": lambda value: deque(*_list(value, list, (int, NoneType))),
    "b": lambda value: binascii.a2b_base64(_checked(str, value), strict_mode=True),
    "a": lambda value: bytearray(binascii.a2b_base64(_checked(str, value), strict_mode=True)),
    "c": lambda value: complex(*_list(value, _number, _number)),
    "r": lambda value: range(*_list(value, int, int, int)),
    "l": lambda value: slice(*_list(value, object, object, object)),
    "e": lambda value: ...,
    "n": lambda value: Decimal(_checked(str, value)),
    "x": lambda value: Fraction(*_list(value, int, int)),
    "w": _moment,
}
"""What plain data of a tag are made with; each checks what it is given."""
