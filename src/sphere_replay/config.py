"""What the domains' configurations share: checks of types and names, one spelling of numbers.

A configuration is a flat frozen dataclass whose JSON form is a run's identity, so a wrong type or
a second spelling of the same value must be met before anything is stored. Beside the settings that
form has the constants that results depend on, the version of this package and digests of the parts
that come from elsewhere: a run stays what it was when one of them changes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from sphere_replay import __version__
from sphere_replay.codebase import digest_of_others
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

_BESIDE = ("constants", "code")
"""Of the JSON form: no settings."""

Value = TypeVar("Value")
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
        """What two runs must share to be compared as a pair: the seed, if nothing else."""
        return self.seed

    def check_fields(self) -> None:
        """Refuse wrong types and infinities; spell 1 and 1.0 alike, for they are one value."""
        ours: Any = type(self)
        annotations = _annotations(ours)
        for entry in fields(self):
            value = getattr(self, entry.name)
            spelled = _spelled(annotations[entry.name])
            kind, optional = _KINDS[spelled]
            right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            if not (right or (optional and value is None)):
                raise ConfigError(f"{entry.name} takes {spelled}, got {value!r}")
            if isinstance(value, int) and abs(value) >= 2**63:
                raise ConfigError(f"{entry.name} must be below 2**63, got {value}")
            if spelled.startswith("float") and value is not None:
                if not math.isfinite(value):
                    raise ConfigError(f"{entry.name} must be finite, got {float(value)}")
                object.__setattr__(self, entry.name, float(value))

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

    @property
    def idle(self) -> tuple[str, ...]:
        """Settings that mean nothing in this run, and then are no part of its identity."""
        return ()

    def unasked(self, names: Iterable[str]) -> list[str]:
        """Those of the settings that are at their defaults."""
        return [name for name in names if getattr(self, name) == getattr(type(self), name)]

    @property
    def parts(self) -> Mapping[str, object]:
        """Classes and functions that somebody else may have written, by the setting they serve."""
        return {}

    @property
    def code(self) -> dict[str, str]:
        """The version of this package, and a digest for each part of somebody else's."""
        digests = {name: digest_of_others(part) for name, part in self.parts.items()}
        others = {name: digest for name, digest in digests.items() if digest is not None}
        return {"sphere_replay": __version__, **others}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: settings that mean something, the constants and the code."""
        settings = {name: value for name, value in asdict(self).items() if name not in self.idle}
        return {**settings, "constants": self.constants, "code": self.code}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; what a form of an older version lacks is as it is now.

        So is the code, whatever the form says of it: see `changed_code`.
        """
        for name in _BESIDE:
            if not isinstance(saved.get(name, {}), dict):
                raise ConfigError(f"{name} of a saved configuration should be a group of entries")
        settings = {name: value for name, value in saved.items() if name not in _BESIDE}
        settings = cls.renamed(settings)
        strangers = sorted(set(settings) - {entry.name for entry in fields(cls)})
        if strangers:  # another domain's, or a later version's
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

    @classmethod
    def needs(cls) -> set[str]:
        """Settings without a default: by them a saved form is known to be of this domain."""
        return {
            entry.name
            for entry in fields(cls)
            if entry.default is MISSING and entry.default_factory is MISSING
        }

    @classmethod
    def check_names(cls, settings: Iterable[str]) -> None:
        """Refuse settings that do not exist, with the closest ones that do."""
        for name in settings:
            one_of("setting", name, sorted(entry.name for entry in fields(cls)))

    @classmethod
    def renamed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings of an older version, under their names of today."""
        return settings

    def changed_code(self, saved: Mapping[str, Any]) -> list[str]:
        """What a saved form was made by that is not what it is now, in words."""
        was, now = saved.get("code", {}), self.code
        return [
            f"{name} was {_shortened(was.get(name))}, and is {_shortened(now.get(name))}"
            for name in sorted(was.keys() | now.keys() if was else ())
            if was.get(name) != now.get(name)
        ]


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


def from_options(kind: type[Value], given: Mapping[str, Any]) -> Value:
    """A dataclass from its fields by name, each of the type of its default; others keep theirs."""
    known = {entry.name: entry for entry in fields(kind) if entry.init}  # type: ignore[arg-type]  # checked where it is registered
    options = {}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(
                unknown("option", name, known) if known else f"no option {name!r}: it has none"
            )
        default = known[name].default
        if type(default) is float and type(value) is int:
            value = float(value)
        if default not in (None, MISSING) and type(value) is not type(default):
            expected = type(default).__name__
            raise ConfigError(f"option {name} takes {expected}, got {value!r}")
        options[name] = value
    return kind(**options)


def one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a name that does not exist, with the closest ones that do."""
    names = list(known)
    if value not in names:
        raise ConfigError(unknown(name, value, names))


def _shortened(digest: object) -> str:
    return "ours" if digest is None else str(digest)[:10]


@cache
def _annotations(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _spelled(annotation: object) -> str:
    if type(annotation) is type:
        return annotation.__name__
    return str(annotation).replace("typing.", "")
