"""Constants of a part as a typed value: each is declared once, with its default and its bounds.

    @dataclass(frozen=True, kw_only=True)
    class DarkOptions(HostOptions):
        alpha: float = number(0.5)

Run configurations spell options as JSON does: `Options.of` reads them, and takes 0 and 1 for a
switch and a position for a rule.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self, TypeVar

from sphere_replay.errors import unknown

Rule = TypeVar("Rule", bound=StrEnum)


@dataclass(frozen=True)
class _Kind:
    """What an option takes: in words, as a test, and how a value is spelled in the end."""

    expected: str
    takes: Callable[[Any], bool]
    spelled: Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all options."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            kind: _Kind = entry.metadata["kind"]
            value = getattr(self, entry.name)
            if not kind.takes(value):
                raise ValueError(f"option {entry.name} takes {kind.expected}, got {value!r}")
            object.__setattr__(self, entry.name, kind.spelled(value))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Options by name; those that are not named have their defaults."""
        known = [entry.name for entry in fields(cls)]
        for name in given:
            if name not in known:
                raise ValueError(unknown("option", name, known))
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Every option by name, for JSON."""
        return {
            name: value.value if isinstance(value, StrEnum) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, kw_only=True)
class HostOptions(Options):
    """Base of the options of hosts, and those of a host that has none."""


def number(default: float, *, positive: bool = False) -> float:
    """A number that is not negative, or above 0."""
    if positive:
        kind = _Kind("a number above 0", lambda value: _is_number(value) and value > 0, float)
    else:
        kind = _Kind("a number that is not negative", _is_number, float)
    return field(default=default, metadata={"kind": kind})


def share(default: float, *, positive: bool = False) -> float:
    """A probability or a part of a whole, which may not be nothing if it must be positive."""

    def takes(value: Any) -> bool:
        return _is_number(value) and value <= 1 and (value > 0 or not positive)

    expected = "a share above 0 and at most 1" if positive else "a share from 0 to 1"
    return field(default=default, metadata={"kind": _Kind(expected, takes, float)})


def decay(default: float) -> float:
    """What is left of an average after a step: less than all of it."""
    kind = _Kind("a share from 0, below 1", lambda value: _is_number(value) and value < 1, float)
    return field(default=default, metadata={"kind": kind})


def count(default: int, *, least: int = 0) -> int:
    """A whole number."""

    def takes(value: Any) -> bool:
        return _is_number(value) and value == int(value) and value >= least

    expected = f"a whole number of at least {least}"
    return field(default=default, metadata={"kind": _Kind(expected, takes, int)})


def switch(default: bool) -> bool:
    """On or off."""
    kind = _Kind("true or false (or 1 or 0)", lambda value: value in (0, 1), bool)
    return field(default=default, metadata={"kind": kind})


def rule(default: Rule) -> Rule:
    """One of a few named rules, by its name or its position."""
    rules = list(type(default))
    known: dict[Any, Rule] = {each.value: each for each in rules} | dict(enumerate(rules))

    def takes(value: Any) -> bool:
        return (isinstance(value, str) or _is_number(value)) and value in known

    expected = f"one of {', '.join(rules)} (or 0 to {len(rules) - 1})"
    return field(default=default, metadata={"kind": _Kind(expected, takes, known.__getitem__)})


def _is_number(value: Any) -> bool:
    """Whether it is a finite number, not negative; true and false are none."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )
