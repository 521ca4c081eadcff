"""The program's side of the wire: it is imported here, and does what the judge's process asks for.

Nothing here is trusted. The program shares this interpreter and may exchange any of it, but all
that it can gain is to send other answers than its functions give.
"""

import builtins
import copy
import importlib
import io
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from .codec import PLAIN, UnplainError, WireError, decode, encode
from .library import find, name_of
from .wire import Channel

INPUT, LINE = 0, 1
"""Objects of the judge that every program may call: `input`, and the next line of its input."""
_MUTABLE = frozenset({list, dict, set, bytearray})
_SPECIAL = (
    *("__call__", "__iter__", "__next__", "__len__", "__bool__", "__getitem__", "__setitem__"),
    *("__delitem__", "__contains__", "__enter__", "__exit__", "__reversed__", "__int__"),
    *("__float__", "__index__", "__complex__", "__bytes__", "__format__"),
)
"""Methods that change what Python does with an object by being there."""
_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"),
    *("lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge", "contains", "getitem"),
)


class Foreign:
    """An object of the tests, with which nothing can be done."""

    def __init__(self, side: "Side", number: int) -> None:
        self._side, self._number = side, number


class ForeignObject(Foreign):
    """An instance of a class of the tests: its public attributes can be read and set."""

    def __getattr__(self, name: str) -> object:
        return self._side.ask("get", self._number, (name,), {})

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("_side", "_number"):
            object.__setattr__(self, name, value)
        else:
            self._side.ask("set", self._number, (name, value), {})


class ForeignCallable(Foreign):
    """A function of the tests."""

    def __call__(self, *positional: object, **named: object) -> object:
        """Have it called where it is."""
        return self._side.ask("call", self._number, positional, named)


class ForeignIterable(Foreign):
    """An iterator of the tests, or an object that can be iterated over."""

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        return self._side.ask("next", self._number, (), {})


_FOREIGN: dict[str, type[Foreign]] = {
    "call": ForeignCallable,
    "iterate": ForeignIterable,
    "fields": ForeignObject,
    "": Foreign,
}


class _Printed(io.RawIOBase):
    """Takes what is printed while the judge waits; too much of it goes out at once."""

    def __init__(self) -> None:
        self.held = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.held += bytes(data)
        if len(self.held) > 1 << 18:
            os.write(1, self.held)
            self.held = b""
        return len(data)


class _Lines(io.TextIOBase):
    """Standard input, as the tests have it."""

    def __init__(self, side: "Side") -> None:
        self._side = side

    def readline(self, size: int = -1) -> str:  # type: ignore[override]  # whole lines only
        return str(self._side.ask("call", LINE, (), {}))

    def read(self, size: int | None = -1) -> str:
        return "".join(iter(self.readline, ""))


class Side:
    """Objects that stay here, by number, and the conversation with the judge's process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._objects: list[Any] = [None]  # the module `solution` is number 0
        self._numbers: dict[int, int] = {}
        self._foreign: dict[int, Foreign] = {}
        self._asking = threading.RLock()
        self._printed = _Printed()
        self._out = io.TextIOWrapper(io.BufferedWriter(self._printed), encoding="utf-8")

    def serve(self) -> None:
        """Import the program, then answer until nobody asks any more."""
        sys.stdout, sys.stdin = self._out, _Lines(self)
        builtins.input = lambda prompt="", /: str(self.ask("call", INPUT, (prompt,), {}))
        failure: BaseException | None = None
        try:
            self._objects[0] = importlib.import_module("solution")
        except BaseException as error:
            failure = error
        try:
            while True:
                self._answer(decode(self._channel.receive(), self._home), failure)
        except EOFError:
            os._exit(0)

    def ask(self, action: str, number: int, positional: Any, named: dict[str, object]) -> object:
        """Have the judge's process call something of its own."""
        with self._asking:
            words = encode([list(positional), list(named.items())], self._exile)
            self._channel.send(f'[0,"?",["{action}",{number},{words}],0,{self._said()}]')
            while True:
                answer = decode(self._channel.receive(), self._home)
                if answer[0] == "=":
                    return answer[1]
                if answer[0] == "!":
                    raise answer[1](*answer[2])
                self._answer(answer, None)  # the tests call the program within what it called

    def _answer(self, request: list[Any], failure: BaseException | None) -> None:
        sequence, name, number, positional, named = request
        named = dict(named) if named else {}
        watched = [
            (key, value, encode(value, self._exile))
            for key, value in (*enumerate(positional), *named.items())
            if type(value) in _MUTABLE
        ]
        try:
            if name == "load" and failure is not None:
                raise failure
            value = _OPERATIONS[name](self._objects[number], *positional, **named)
            if name == "get" and _is_method(self._objects[number], value):
                words = '"=",{"m":0}'
            else:
                words = '"=",' + encode(value, self._exile)
        except BaseException as error:  # whatever the program raises is an answer
            words = '"!",' + self._spelled(error)
        changed = [[key, value] for key, value, was in watched if encode(value, self._exile) != was]
        after = encode(changed, self._exile) if changed else "0"
        try:
            self._channel.send(f"[{sequence},{words},{after},{self._said()}]")
        except UnplainError as error:
            self._channel.send(f'[{sequence},"!",{self._spelled(ValueError(str(error)))},0,0]')

    def _spelled(self, error: BaseException) -> str:
        try:
            text = str(error)
        except Exception:
            text = ""
        plain = [part if _is_plain(part) else text for part in error.args]
        return encode([type(error), plain, text, error], self._exile)

    def _said(self) -> str:
        self._out.flush()
        text, self._printed.held = self._printed.held, b""
        return encode(text.decode("utf-8", "replace"), self._exile) if text else "0"

    def _exile(self, value: object) -> dict[str, Any]:
        if isinstance(value, Foreign):
            return {"k": value._number}
        name = name_of(value) if isinstance(value, type | ModuleType) else None
        if name is not None:
            return {"g": name}
        number = self._number(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [base for base in value.__bases__ if issubclass(base, BaseException)]
            named = [str(value.__module__), value.__name__]
            return {"X": [number, *named, [self._exile(base) for base in bases]]}
        return {"h": [number, self._number(type(value))]}

    def _number(self, value: object) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)  # which also keeps its id from being used again
        return number

    def _home(self, tag: str, content: Any) -> object:
        if tag == "k":
            return self._objects[content]
        if tag == "g":
            return find(content)
        if tag == "h":
            number, kind = content
            if number not in self._foreign:
                self._foreign[number] = _FOREIGN[kind](self, number)
            return self._foreign[number]
        raise WireError(f"no tag {tag}")


def _is_plain(value: object) -> bool:
    def refuse(value: object) -> dict[str, Any]:
        raise UnplainError

    try:
        encode(value, refuse)
    except UnplainError:
        return False
    return True


def _is_method(target: object, value: object) -> bool:
    """Whether an attribute is a plain method, which the judge's process need not ask for again."""
    return (
        isinstance(value, MethodType)
        and value.__self__ is target
        and not isinstance(target, type)
        and isinstance(getattr(type(target), value.__name__, None), FunctionType)
    )


def _described(kind: type) -> list[Any]:
    """A class: its name, the special methods of its instances, whether it derives from plain."""
    special = [name for name in _SPECIAL if getattr(kind, name, None) is not None]
    return [kind.__name__, special, issubclass(kind, PLAIN)]


def _plain_part(value: Any) -> list[object]:
    """What an instance of a class that derives from a plain type is as plain data."""
    for kind in PLAIN:
        if isinstance(value, kind):
            return [dict(value.items()) if isinstance(value, dict) else kind(value)]
    return []


def _public(module: Any) -> list[str]:
    names: Iterable[str] = getattr(module, "__all__", None) or vars(module)
    return [name for name in names if not name.startswith("_")]


def _reflected(function: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
    return lambda target, other: function(other, target)


_OPERATIONS: dict[str, Callable[..., object]] = {
    "load": lambda module: None,
    "names": _public,
    "get": getattr,
    "set": setattr,
    "del": delattr,
    "call": lambda target, /, *positional, **named: target(*positional, **named),
    "invoke": lambda target, name, /, *positional, **named: getattr(target, name)(
        *positional, **named
    ),
    "describe": _described,
    "plain": _plain_part,
    "isinstance": lambda kind, value: isinstance(value, kind),
    "issubclass": lambda kind, value: issubclass(value, kind),
    "enter": lambda target: type(target).__enter__(target),
    "exit": lambda target, *error: type(target).__exit__(target, *error),
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "neg": operator.neg,
    "pos": operator.pos,
    "invert": operator.invert,
    **{kind.__name__: kind for kind in (str, bytes, bool, int, float, complex, reversed)},
    **{call.__name__: call for call in (len, iter, next, repr, hash, abs, round, format)},
    **{call.__name__: call for call in (operator.index, copy.copy, copy.deepcopy)},
    **{name.rstrip("_"): getattr(operator, name) for name in _BINARY},
    **{f"r{name.rstrip('_')}": _reflected(getattr(operator, name)) for name in _BINARY},
}
"""What the judge's process may ask for: of an object of this side, with values."""
