"""What the domains' configurations share: checks of types and names, one spelling of numbers.

A configuration is a flat frozen dataclass whose JSON form is a run's identity, so a wrong type or
a second spelling of the same value must be met before anything is stored. Beside the settings that
form has the constants that results depend on: a run stays what it was when one of them changes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, fields, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

from sphere_replay.errors import ConfigError, unknown

_KINDS: dict[str, tuple[Any, bool]] = {
    "str": (str, False),
    "int": (int, False),
    "float": ((float, int), False),
    "bool": (bool, False),
    "int | None": (int, True),
    "float | None": ((float, int), True),
    "dict[str, Any]": (dict, False),
}
"""What the fields' annotations mean, and whether None is a value."""

Pair = int | str
"""What pairs the runs of two methods: a seed, or text where it is more ("order 1, seed 3")."""


class RunConfig:
    """Base of the configurations: plain fields, checked in `__post_init__` of each domain."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    DOMAIN: ClassVar[str]
    """Name of its domain."""
    seed: int
    """Fixes everything random."""
    host: str
    """The learner."""
    select: str
    """How memories are chosen."""

    @property
    def run_name(self) -> str:
        """Readable stem of the run's folder."""
        raise NotImplementedError

    @property
    def pair(self) -> Pair:
        """What two runs must share to be compared as a pair."""
        raise NotImplementedError

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
            if _spelled(entry.type).startswith("float") and value is not None:
                object.__setattr__(self, entry.name, _finite(entry.name, value))

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

    @property
    def constants(self) -> dict[str, Any]:
        """What results depend on and no setting says, by what it belongs to."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: all settings, and the constants beside them."""
        return {**asdict(self), "constants": self.constants}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; what a form of an older version lacks is as it is now."""
        settings = {name: value for name, value in saved.items() if name != "constants"}
        strangers = sorted(set(settings) - {entry.name for entry in fields(cls)})
        if strangers:
            raise ConfigError(f"not part of the {cls.DOMAIN} configuration: {', '.join(strangers)}")
        config = cls(**settings)
        now = config.constants
        changed = [name for name, was in saved.get("constants", {}).items() if was != now.get(name)]
        if changed:
            raise ConfigError(
                f"the saved configuration has other constants of {', '.join(changed)} than this "
                "version: read it with the version that its manifest names"
            )
        return config


def described(value: Any) -> Any:
    """A frozen value as plain data for JSON: the name of its class, and its fields."""
    if isinstance(value, tuple):
        return [described(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if not is_dataclass(value):
        return value
    content = {entry.name: described(getattr(value, entry.name)) for entry in fields(value)}
    return {"kind": type(value).__name__, **content}


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
    if type(annotation) is type:
        return annotation.__name__
    return str(annotation).replace("typing.", "")
