"""Settings of runs by name: those of a part are spelled with a dot, `select.temperature`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sphere_replay.config import RunConfig
from sphere_replay.errors import ConfigError

OWNERS = {
    "select": "select_options",
    "host": "options",
    "network": "network_options",
    "optimizer": "optimizer_options",
}
"""Parts with options of their own, and the setting that holds them."""


def spelled_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as configurations know them: options of a part as a dictionary."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        owner, dot, option = name.partition(".")
        if dot:
            name, value = OWNERS.get(owner, owner), {option: value}
        elif owner in OWNERS and isinstance(value, dict):
            name = OWNERS[owner]
        found = merged(found, {name: value})
    return found


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as people write them, options of a part with its name: `spelled_out` undone."""
    parts = {held: owner for owner, held in OWNERS.items()}
    found: dict[str, Any] = {}
    for name, value in settings.items():
        nested = value.items() if isinstance(value, Mapping) else ()
        owner = parts.get(name, name)
        found |= {f"{owner}.{option}": each for option, each in nested} or {name: value}
    return found


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings for a reader: `limit 600, select.agreement 0.5`."""
    return ", ".join(
        f"{name} {value}" if value is not None else f"no {name}"
        for name, value in dotted(settings).items()
    )


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, later ones first; dictionaries among them, such as options, are merged as well."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            nested = isinstance(value, dict) and isinstance(found.get(name), dict)
            found[name] = {**found[name], **value} if nested else value
    return found


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """A configuration with some settings changed."""
    known = config.__dataclass_fields__
    for name in settings:
        if name not in known:
            raise ConfigError(f"a {config.DOMAIN} run has no setting {name!r}")
    before = {name: getattr(config, name) for name in settings}
    for owner, held in OWNERS.items():
        if owner in settings and held in known and settings[owner] != before[owner]:
            before[held] = {}  # another part has other options
    changed: RunConfig = replace(config, **merged(before, settings))
    return changed
