"""The judge's end of the wire: asks the program's process, and believes none of its messages.

No code of the program runs here. A message that breaks the rules ends the run.
"""

import builtins
import sys
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from .codec import WireError, decode, encode
from .handles import METHOD, Handle, Mirrored, handle_class, number_of
from .library import find, find_exception, name_of
from .wire import Channel

TESTS = "test_solution"
"""The module of the tests."""


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
        # Objects of the tests, by the numbers under which the program knows them.
        self._own: list[Any] = [lambda *words: builtins.input(*words), lambda: sys.stdin.readline()]
        self._own_numbers: dict[int, int] = {}
        self._uses = {0: "call", 1: "call"}
        # Objects of the program, by theirs.
        self._handles: dict[int, Handle] = {}
        self._kinds: dict[int, type[Handle]] = {}
        self._errors: dict[int, type[BaseException]] = {}

    def load(self) -> None:
        """Wait for the program; raises what importing it raised."""
        kind, why = self._receive(2)  # sent before the program was loaded
        if kind != "ready":
            self._end("refused", str(why))
        self.ask("load", 0)

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
            for change in self._checked(list, changed) if changed else ():
                self._merge(positional, named, change)
            if kind == "=":
                return content
            if kind != "!":
                self._broken("an answer of no kind")
            raise self._error(content)

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
        if type(value) is not kind and kind is not object:
            self._broken(f"a {type(value).__name__} in place of a {kind.__name__}")
        return value

    def _shaped(self, value: Any, *kinds: type) -> list[Any]:
        if type(value) is not list or len(value) != len(kinds):
            self._broken("a message of another shape")
        return [self._checked(kind, part) for kind, part in zip(kinds, value, strict=True)]

    def _merge(self, positional: Any, named: Any, change: Any) -> None:
        """The program changed an argument: the same happens to the original."""
        key, value = self._shaped(change, object, object)
        try:
            merge((named if type(key) is str else positional)[key], value)
        except (KeyError, IndexError, TypeError):
            self._broken("a change of no argument")

    def _call_back(self, content: Any) -> None:
        """The program uses an object that the tests handed to it.

        It may call functions, take the next value of iterators, and read and set the public
        attributes of instances of the tests' own classes; nothing else.
        """
        action, number, words = self._shaped(content, str, int, list)
        positional, named = self._shaped(words, list, list)
        use = self._uses.get(number)
        if use is None or action not in _ACTIONS[use]:
            self._broken("a use of nothing that was handed over")
        if use == "fields" and not (positional and _is_public(positional[0])):
            self._broken("a use of a private attribute")
        try:
            value = _ACTIONS[use][action](self._own[number], *positional, **dict(named))
            text = '["=",' + encode(value, self._exile) + "]"
        except Exception as error:
            known = type(error) in self._errors.values() or name_of(type(error)) is not None
            kind = type(error) if known else RuntimeError
            text = encode(["!", kind, list(error.args)], self._exile)
        self._send(text)

    def _error(self, content: Any) -> BaseException:
        kind, words, text, handle = self._shaped(content, object, list, str, object)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            self._broken("an exception that is none")
        if issubclass(kind, Mirrored):
            error: Any = kind.__new__(kind)
            error.args, error._text, error._handle = tuple(words), text, handle
            return error  # type: ignore[no-any-return]  # a class that is both
        try:
            return kind(*words)
        except Exception:  # such as one that wants other arguments than it keeps
            error = kind.__new__(kind)
            error.args = (text,)
            return error  # type: ignore[no-any-return]  # made by an exception's own class

    def _exile(self, value: object) -> dict[str, Any]:
        if isinstance(value, Handle):
            return {"k": number_of(value)}
        if isinstance(value, Mirrored) and value._handle is not None:
            return {"k": number_of(value._handle)}
        for number, kind in self._errors.items():
            if value is kind:
                return {"k": number}
        name = name_of(value)
        if name is not None:
            return {"g": name}
        if hasattr(type(value), "__iter__") and not _use_of(value):
            value = iter(value)  # type: ignore[call-overload]  # it has __iter__
        own = self._own_numbers.setdefault(id(value), len(self._own))
        if own == len(self._own):
            self._own.append(value)  # which also keeps its id from being used again
            self._uses[own] = _use_of(value)
        return {"h": [own, self._uses[own]]}

    def _home(self, tag: str, content: Any) -> object:
        if tag == "h":
            number, kind = self._shaped(content, int, int)
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
        if tag == "k" and type(content) is int and content in self._uses:
            return self._own[content]
        if tag == "m":
            return METHOD
        raise WireError("no such tag")

    def _kind(self, number: int) -> type[Handle]:
        if number not in self._kinds:
            # Said once: whether a class derives from a plain type cannot change later.
            name, special, derived = self._shaped(self.ask("describe", number), str, list, bool)
            self._kinds[number] = handle_class(name, special, derived)
        return self._kinds[number]

    def _mirror(self, content: Any) -> type[BaseException]:
        """A class of ours for an exception of the program: `pytest.raises` wants a real one."""
        number, module, name, bases = self._shaped(content, int, str, str, list)
        known = find_exception(module, name)
        if known is not None:
            return known
        if number not in self._errors:
            parents = [self._home(*self._only(base)) for base in bases]
            real = [one for one in parents if isinstance(one, type)]
            if len(real) < len(parents) or not all(issubclass(e, BaseException) for e in real):
                raise WireError("an exception that is none")
            own = [] if any(issubclass(one, Mirrored) for one in real) else [Mirrored]
            self._errors[number] = type(name, (*own, *real), {})
        return self._errors[number]

    def _only(self, tagged: Any) -> tuple[str, Any]:
        if type(tagged) is not dict or len(tagged) != 1:
            raise WireError("no such object")
        ((tag, content),) = tagged.items()
        return tag, content


_ACTIONS: dict[str, dict[str, Callable[..., object]]] = {
    "call": {"call": lambda own, /, *positional, **named: own(*positional, **named)},
    "iterate": {"next": lambda own, /: next(own)},
    "fields": {"get": getattr, "set": setattr},
    "": {},
}
"""What a program may do with an object of the tests, by how that can be used."""


def _use_of(value: object) -> str:
    if type(value).__module__ == TESTS and not callable(value):
        return "fields"
    if callable(value):
        return "call"
    return "iterate" if hasattr(type(value), "__next__") else ""


def _is_public(name: object) -> bool:
    return type(name) is str and name.isidentifier() and not name.startswith("_")


def merge(old: Any, new: Any) -> None:
    """What a program did to a container it was given, done to the original.

    The container becomes equal to another of its type; it and the containers in it are kept.
    """
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
