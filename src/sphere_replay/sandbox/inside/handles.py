"""Objects of the program as tests see them: handles, whose every use is asked for over the wire.

No object of the program decides a comparison with a value of the tests, or learns such a value by
being compared or computed with: what derives from a plain type is fetched as plain data first, and
what does not is equal to nothing but other objects of the program, by its own word.
"""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .codec import PLAIN, UnplainError

if TYPE_CHECKING:
    from .peer import Peer

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("lshift", "rshift"),
)
METHOD = object()
"""What the program's side answers for an attribute that is a plain method."""


class Handle:
    """An object that stays in the program's process."""

    __slots__ = ("_sphere_number", "_sphere_peer")
    _sphere_derived = False
    """Whether its class derives from a plain type."""

    def __init__(self, peer: "Peer", number: int) -> None:
        object.__setattr__(self, "_sphere_peer", peer)
        object.__setattr__(self, "_sphere_number", number)

    def __getattr__(self, name: str) -> object:
        value = _ask(self, "get", name)
        if value is not METHOD:
            return value

        def method(self: Handle, /, *positional: object, **named: object) -> object:
            return _ask(self, "invoke", name, *positional, **named)

        method.__name__ = name
        setattr(type(self), name, method)
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _ask(self, "set", name, value)

    def __delattr__(self, name: str) -> None:
        _ask(self, "del", name)

    def __str__(self) -> str:
        return str(_exactly(str, _ask(self, "str")))

    def __repr__(self) -> str:
        return str(_exactly(str, _ask(self, "repr")))

    def __hash__(self) -> int:
        return int(_exactly(int, _ask(self, "hash")))

    def __instancecheck__(self, value: object) -> bool:
        value = value._handle if isinstance(value, Mirrored) else value
        return isinstance(value, Handle) and bool(_ask(self, "isinstance", value))

    def __subclasscheck__(self, value: object) -> bool:
        return isinstance(value, Handle) and bool(_ask(self, "issubclass", value))

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        raise UnplainError("the tests derive from a class of the program")

    def __copy__(self) -> object:
        return _ask(self, "copy")

    def __deepcopy__(self, _: object) -> object:
        return _ask(self, "deepcopy")


class Mirrored:
    """What exceptions of the program have in common here: text and attributes are asked for."""

    _text: str | None = None
    _handle: Any = None

    def __getattr__(self, name: str) -> object:
        if self._handle is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._handle, name)

    def __str__(self) -> str:
        return super().__str__() if self._text is None else self._text


def handle_class(name: str, special: list[object], derived: bool) -> type[Handle]:
    """A class of handles with the special methods that a class of the program has."""
    methods = {one: _SPECIAL[one] for one in special if type(one) is str and one in _SPECIAL}
    fields = {"__slots__": (), "_sphere_derived": derived}
    return type(name.replace("\0", ""), (Handle,), {**fields, **methods})


def number_of(handle: Handle) -> int:
    """The number of a handle's object."""
    number: int = object.__getattribute__(handle, "_sphere_number")
    return number


def _ask(handle: Handle, name: str, /, *positional: object, **named: object) -> Any:
    peer: Peer = object.__getattribute__(handle, "_sphere_peer")
    return peer.ask(name, number_of(handle), *positional, **named)


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"the program gave a {type(value).__name__} in place of {kind.__name__}")
    return value


def _plain_part(handle: Handle) -> list[Any]:
    """[plain data] of an object whose class derives from a plain type, else []."""
    if not type(handle)._sphere_derived:
        return []
    part: list[Any] = _exactly(list, _ask(handle, "plain"))
    return part if len(part) == 1 and type(part[0]) in PLAIN else []


def _compared(name: str) -> Callable[[Handle, object], object]:
    compare = getattr(operator, name)

    def method(self: Handle, other: object) -> object:
        if isinstance(other, Handle):
            return _ask(self, name, other)
        part = _plain_part(self) if type(other) in PLAIN else []
        return compare(part[0], other) if part else NotImplemented

    return method


def _computed(name: str, reflected: bool) -> Callable[[Handle, object], object]:
    compute = getattr(operator, f"{name}_" if name in ("and", "or") else name)

    def method(self: Handle, other: object) -> object:
        if isinstance(other, Handle):
            return _ask(self, name, other)
        part = _plain_part(self)
        if not part:  # `expected - result` would tell the program what it should have been
            raise UnplainError("an object of the program computes with a value of the tests")
        return compute(other, part[0]) if reflected else compute(part[0], other)

    return method


def _asking(name: str, kind: type | None = None) -> Callable[..., object]:
    def method(self: Handle, /, *positional: object, **named: object) -> object:
        value = _ask(self, name, *positional, **named)
        return value if kind is None else _exactly(kind, value)

    return method


def _contains(self: Any, item: object) -> bool:
    if isinstance(item, Handle):
        return bool(_ask(self, "contains", item))
    return any(item is one or item == one for one in self)


def _leave(self: Handle, kind: object, error: object, trace: object) -> object:
    """The end of a `with`; the program sees what was raised by type."""
    return _ask(self, "exit", kind, None, None)


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
    setattr(Handle, f"__{_name}__", _asking(_name))
