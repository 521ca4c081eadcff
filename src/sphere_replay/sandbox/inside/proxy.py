"""The judge's side of the wire: the module `solution` that tests import, and handles.

Functions and objects of the program are handles here: what tests do with them is asked for over the
wire, and plain data come back. No code of the program runs in this process, and no object of it
decides a comparison with a value of the tests.
"""

import ast
import builtins
import importlib.abc
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from .codec import UnplainError, WireError, decode, encode
from .library import find, find_exception, name_of
from .wire import Channel

_PLAIN_OPERANDS = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("lshift", "rshift"),
)


class Peer:
    """The conversation with the program's process.

    Args:
        channel: The wire.
        end: Called with a kind of report and a reason when the other side has no more to say:
            ("", "") if it is gone. Does not return.
    """

    def __init__(self, channel: Channel, end: Callable[[str, str], NoReturn]) -> None:
        self._channel, self._end = channel, end
        self._sequence = 0
        self._own: list[Any] = [
            lambda *words: builtins.input(*words),
            lambda: sys.stdin.readline(),
        ]
        self._handles: dict[int, Handle] = {}
        self._kinds: dict[int, type[Handle]] = {}
        self._errors: dict[int, type[BaseException]] = {}

    def ask(self, name: str, number: int, /, *positional: object, **named: object) -> Any:
        """Have something done to an object of the program; returns or raises what comes of it."""
        self._sequence += 1
        sequence = self._sequence
        words = encode(list(positional), self._exile)
        names = encode(list(named.items()), self._exile) if named else "0"
        self._send(f'[{sequence},"{name}",{number},{words},{names}]')
        while True:
            answered, kind, content, changed, printed = self._receive(5)
            if printed:
                sys.stdout.write(self._checked(str, printed))
            if kind == "?":
                self._call_back(content)
                continue
            if answered != sequence:
                self._broken("an answer out of turn")
            for key, value in self._checked(list, changed) if changed else ():
                self._merge(named if type(key) is str else positional, key, value)
            if kind == "=":
                return content
            if kind != "!":
                self._broken("an answer of no kind")
            raise self._error(content)

    def load(self) -> None:
        """Wait for the program; raises what importing it raised."""
        kind, why = self._receive(2)  # sent before the program was loaded
        if kind != "ready":
            self._end("refused", str(why))
        self.ask("load", 0)

    def _broken(self, why: str) -> NoReturn:
        self._end("tampered" if why else "", why)

    def _send(self, text: str) -> None:
        try:
            self._channel.send(text)
        except EOFError:
            self._broken("")

    def _receive(self, parts: int) -> list[Any]:
        try:
            message = decode(self._channel.receive(), self._home)
        except EOFError:
            self._broken("")
        except (WireError, RecursionError) as error:
            self._broken(f"{error} on the wire")
        if type(message) is not list or len(message) != parts:
            self._broken("no message on the wire")
        return message

    def _checked(self, kind: type, value: Any) -> Any:
        if type(value) is not kind:
            self._broken(f"a {type(value).__name__} in place of a {kind.__name__}")
        return value

    def _merge(self, arguments: Any, key: Any, value: Any) -> None:
        """The program changed an argument: the same happens to the original."""
        try:
            merge(arguments[key], value)
        except (KeyError, IndexError, TypeError):
            self._broken("a change of no argument")

    def _call_back(self, content: Any) -> None:
        """The program calls a function of the tests that it was given, or asks for the next value.

        Nothing else can be done to what tests hand over.
        """
        action, number, words = self._shaped(content, str, int, list)
        positional, named = self._shaped(words, list, list)
        if action not in ("call", "next") or not 0 <= number < len(self._own):
            self._broken("a call of nothing")
        try:
            own = self._own[number]
            value = own(*positional, **dict(named)) if action == "call" else next(own)
            text = '["=",' + encode(value, self._exile) + "]"
        except Exception as error:
            text = encode(["!", self._raisable(type(error)), list(error.args)], self._exile)
        self._send(text)

    def _shaped(self, value: Any, *kinds: type) -> list[Any]:
        if type(value) is not list or len(value) != len(kinds):
            self._broken("a message of another shape")
        return [self._checked(kind, part) for kind, part in zip(kinds, value, strict=True)]

    def _raisable(self, kind: type[BaseException]) -> type[BaseException]:
        known = kind in self._errors.values() or name_of(kind) is not None
        return kind if known else RuntimeError

    def _error(self, content: Any) -> BaseException:
        if type(content) is not list or len(content) != 4:
            self._broken("an exception of another shape")
        kind, words, text, handle = content
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            self._broken("an exception that is none")
        self._checked(list, words)
        try:
            error = kind.__new__(kind, *words) if issubclass(kind, Mirrored) else kind(*words)
        except Exception:
            error = kind.__new__(kind)
            error.args = (text,)
        if isinstance(error, Mirrored):
            error.args = tuple(words)
            error._text, error._handle = text, handle
        return error

    def _exile(self, value: object) -> dict[str, Any]:
        if isinstance(value, Handle):
            return {"k": number_of(value)}
        if isinstance(value, Mirrored):
            return {"k": number_of(value._handle)}
        for number, kind in self._errors.items():
            if value is kind:
                return {"k": number}
        name = name_of(value)
        if name is not None:
            return {"g": name}
        self._own.append(value)
        kind_of_use = ""
        if callable(value):
            kind_of_use = "call"
        elif hasattr(type(value), "__iter__"):
            self._own[-1] = iter(value)  # type: ignore[call-overload]  # it has __iter__
            kind_of_use = "iterate"
        return {"h": [len(self._own) - 1, kind_of_use]}

    def _home(self, tag: str, content: Any) -> object:
        if tag == "h":
            number, kind = self._numbers(content)
            if number not in self._handles:
                self._handles[number] = self._kind(kind)(self, number)
            return self._handles[number]
        if tag == "g":
            found = find(content)
            if not isinstance(found, type | ModuleType):
                raise WireError(f"no {content} to hand out")
            return found
        if tag == "X":
            return self._mirror(content)
        if tag == "k" and type(content) is int and 0 <= content < len(self._own):
            return self._own[content]
        if tag == "m":
            return _METHOD
        raise WireError("no such tag")

    def _numbers(self, content: Any) -> list[int]:
        if type(content) is not list or [type(part) for part in content] != [int, int]:
            raise WireError("a handle of another shape")
        return content

    def _kind(self, number: int) -> "type[Handle]":
        if number not in self._kinds:
            name, special = self._shaped(self.ask("describe", number), str, list)
            methods = {one: _SPECIAL[one] for one in special if one in _SPECIAL}
            self._kinds[number] = type(name.replace("\0", ""), (Handle,), methods)
        return self._kinds[number]

    def _mirror(self, content: Any) -> type[BaseException]:
        """A class of ours for an exception of the program: `pytest.raises` wants a real one."""
        number, module, name, bases = self._shaped(content, int, str, str, list)
        known = find_exception(module, name)
        if known is not None:
            return known
        if number not in self._errors:
            parents = tuple(self._home(*base.popitem()) for base in bases if len(base) == 1)
            if not all(isinstance(one, type) and issubclass(one, BaseException) for one in parents):
                raise WireError("an exception that is none")
            own = () if any(issubclass(one, Mirrored) for one in parents) else (Mirrored,)  # type: ignore[arg-type]  # classes, see above
            self._errors[number] = type(name, (*own, *parents), {})  # type: ignore[assignment]
        return self._errors[number]


class Mirrored:
    """What exceptions of the program have in common here."""

    _text = None
    _handle: Any = None

    def __getattr__(self, name: str) -> object:
        if self._handle is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._handle, name)

    def __str__(self) -> str:
        return super().__str__() if self._text is None else self._text


_METHOD = object()


class Handle:
    """An object that stays in the program's process."""

    __slots__ = ("_sphere_number", "_sphere_peer")

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_sphere_peer", peer)
        object.__setattr__(self, "_sphere_number", number)

    def __getattr__(self, name: str) -> object:
        value = ask(self, "get", name)
        if value is not _METHOD:
            return value

        def method(self: Handle, /, *positional: object, **named: object) -> object:
            return ask(self, "invoke", name, *positional, **named)

        method.__name__ = name
        setattr(type(self), name, method)
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        ask(self, "set", name, value)

    def __delattr__(self, name: str) -> None:
        ask(self, "del", name)

    def __str__(self) -> str:
        return _exactly(str, ask(self, "str"))

    def __repr__(self) -> str:
        return _exactly(str, ask(self, "repr"))

    def __hash__(self) -> int:
        return _exactly(int, ask(self, "hash"))

    def __instancecheck__(self, value: object) -> bool:
        value = value._handle if isinstance(value, Mirrored) else value
        return isinstance(value, Handle) and bool(ask(self, "isinstance", value))

    def __subclasscheck__(self, value: object) -> bool:
        return isinstance(value, Handle) and bool(ask(self, "issubclass", value))

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        raise UnplainError("the tests derive from a class of the program")

    def __copy__(self) -> object:
        return ask(self, "copy")

    def __deepcopy__(self, _: object) -> object:
        return ask(self, "deepcopy")


def ask(handle: Handle, name: str, /, *positional: object, **named: object) -> Any:
    """Ask for something to be done to a handle's object."""
    peer: Peer = object.__getattribute__(handle, "_sphere_peer")
    return peer.ask(name, number_of(handle), *positional, **named)


def number_of(handle: Handle) -> int:
    """The number of a handle's object."""
    number: int = object.__getattribute__(handle, "_sphere_number")
    return number


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"the program gave a {type(value).__name__} in place of {kind.__name__}")
    return value


def _plain_part(handle: Handle) -> list[Any]:
    """[plain data] of an object whose class derives from a plain type, else []."""
    part = _exactly(list, ask(handle, "plain"))
    return part if len(part) == 1 and type(part[0]) in _PLAIN_OPERANDS else []


def _compared(name: str) -> Callable[[Handle, object], object]:
    compare = getattr(operator, name)

    def method(self: Handle, other: object) -> object:
        if isinstance(other, Handle):
            return ask(self, name, other)
        # The program never learns what its object is compared with.
        part = _plain_part(self) if type(other) in _PLAIN_OPERANDS else []
        return compare(part[0], other) if part else NotImplemented

    return method


def _computed(name: str, reflected: bool) -> Callable[[Handle, object], object]:
    compute = getattr(operator, f"{name}_" if name in ("and", "or") else name)

    def method(self: Handle, other: object) -> object:
        if isinstance(other, Handle):
            return ask(self, name, other)
        part = _plain_part(self)
        if part:
            return compute(other, part[0]) if reflected else compute(part[0], other)
        result = ask(self, f"r{name}" if reflected else name, other)
        if not isinstance(result, Handle):
            # `expected - result` would tell the program what it should have been.
            raise UnplainError("an object of the program computes with a value of the tests")
        return result

    return method


def _transformed(name: str) -> Callable[..., object]:
    def method(self: Handle, *positional: object) -> object:
        part = _plain_part(self)
        if part:
            return {"abs": abs, "round": round, "neg": operator.neg}.get(name, operator.pos)(
                part[0], *positional
            )
        result = ask(self, name, *positional)
        if not isinstance(result, Handle):
            raise UnplainError("an object of the program is used as a number")
        return result

    return method


def _asking(name: str, kind: type | None = None) -> Callable[..., object]:
    def method(self: Handle, /, *positional: object, **named: object) -> object:
        value = ask(self, name, *positional, **named)
        return value if kind is None else _exactly(kind, value)

    return method


def _contains(self: Any, item: object) -> bool:
    if isinstance(item, Handle):
        return bool(ask(self, "contains", item))
    return any(item is one or item == one for one in self)


def _leave(self: Handle, kind: object, error: object, trace: object) -> object:
    """The end of a `with`; the program sees what was raised by type."""
    return ask(self, "exit", kind, None, None)


_SPECIAL: dict[str, Callable[..., object]] = {
    "__call__": _asking("call"),
    "__iter__": _asking("iter"),
    "__next__": _asking("next"),
    "__len__": _asking("len", int),
    "__bool__": _asking("bool", bool),
    "__getitem__": _asking("getitem"),
    "__setitem__": _asking("setitem"),
    "__delitem__": _asking("delitem"),
    "__contains__": _contains,
    "__enter__": _asking("enter"),
    "__exit__": _leave,
    "__reversed__": _asking("reversed"),
    "__int__": _asking("int", int),
    "__float__": _asking("float", float),
    "__index__": _asking("index", int),
    "__complex__": _asking("complex", complex),
    "__bytes__": _asking("bytes", bytes),
    "__format__": _asking("format", str),
}
"""Methods of a handle whose object has them."""

for _name in _COMPARISONS:
    setattr(Handle, f"__{_name}__", _compared(_name))
for _name in _ARITHMETIC:
    setattr(Handle, f"__{_name}__", _computed(_name, reflected=False))
    setattr(Handle, f"__r{_name}__", _computed(_name, reflected=True))
for _name in ("abs", "neg", "pos", "invert", "round"):
    setattr(Handle, f"__{_name}__", _transformed(_name))


def merge(old: Any, new: Any) -> None:
    """Make a container equal to another of its type, keeping it and the containers in it."""
    if type(old) is not type(new):
        raise TypeError(f"a {type(new).__name__} for a {type(old).__name__}")
    if isinstance(old, list | deque | bytearray):
        kept = [_merged(was, now) for was, now in zip(old, new, strict=False)]
        added = list(new)[len(kept) :]
        old.clear()
        old.extend([*kept, *added])
    elif isinstance(old, dict):
        content = {key: _merged(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(content)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    else:
        raise TypeError(f"a {type(old).__name__} does not change")


def _merged(old: Any, new: Any) -> Any:
    if type(old) is type(new) and isinstance(old, list | dict | set | deque | bytearray):
        merge(old, new)
        return old
    return new


class Solution(ModuleType):
    """The module that tests import; its names are the program's."""

    def __init__(self, peer: Peer, tests: str) -> None:
        super().__init__("solution")
        vars(self).update(_sphere_peer=peer, _sphere_tests=tests)

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
            self._sphere_peer.ask("set", 0, name, value)

    def __delattr__(self, name: str) -> None:
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
