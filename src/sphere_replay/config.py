"""What the domains' configurations share: checks of types and names, one spelling of numbers.

A configuration is a flat frozen dataclass whose JSON form is a run's identity, so a wrong type or
a second spelling of the same value must be met before anything is stored.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, fields
from typing import Any, ClassVar, Self

from sphere_replay.errors import ConfigError, unknown

_KINDS: dict[str, tuple[Any, bool]] = {
    "str": (str, False),
    "int": (int, False),
    "float": ((float, int), False),
    "bool": (bool, False),
    "int | None": (int, True),
    "float | None": ((float, int), True),
    "dict[str, float]": (dict, False),
}
"""What the fields' annotations mean, and whether None is a value."""


class FlatConfig:
    """Base of the configurations: plain fields, checked in `__post_init__` of each domain."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    DOMAIN: ClassVar[str]
    """For messages."""

    def check_fields(self) -> None:
        """Refuse wrong types and infinities; spell 1 and 1.0 alike, for they are one value."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            spelled = _spelled(entry.type)
            kind, optional = _KINDS[spelled]
            right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            if not (right or (optional and value is None)):
                raise ConfigError(f"{entry.name} takes {spelled}, got {value!r}")
        for entry in fields(self):
            value = getattr(self, entry.name)
            match _spelled(entry.type):
                case "float" | "float | None" if value is not None:
                    object.__setattr__(self, entry.name, _finite(entry.name, value))
                case "dict[str, float]":
                    if not all(isinstance(number, int | float) for number in value.values()):
                        raise ConfigError(f"{entry.name} take numbers, got {value}")
                    spelled_alike = {name: float(number) for name, number in value.items()}
                    object.__setattr__(self, entry.name, spelled_alike)

    def check_positive(self, *names: str) -> None:
        """Refuse zero and less in the named fields."""
        for name in names:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")

    def check_least(self, **least: int) -> None:
        """Refuse numbers below their bound; None, where a field takes it, is not a number."""
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ConfigError(f"{name} must be at least {bound}, got {value}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def in_full(self) -> dict[str, Any]:
        """For people: `to_dict`, and what it leaves at the defaults of this version."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        strangers = sorted(set(saved) - {entry.name for entry in fields(cls)})
        if strangers:
            raise ConfigError(f"not part of the {cls.DOMAIN} configuration: {', '.join(strangers)}")
        return cls(**saved)


def one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a name that does not exist, with the closest ones that do."""
    names = list(known)
    if value not in names:
        raise ConfigError(unknown(name, value, names))


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ConfigError(f"{name} must be finite, got {float(value)}")
    return float(value)


def _spelled(annotation: object) -> str:
    return annotation.__name__ if type(annotation) is type else str(annotation)
