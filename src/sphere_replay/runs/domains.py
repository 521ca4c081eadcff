"""The domains that runs belong to: what runs and reports know of each, loaded when first asked for.

A domain brings its configurations, presets, jobs and tables; folders, sweeps and figures are shared
and know nothing else of it. Its jobs need an extra of their own and are loaded when one is made.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sphere_replay.config import RunConfig, one_of
from sphere_replay.errors import ConfigError, unknown
from sphere_replay.extras import needing
from sphere_replay.runs.job import LoopingJob, SteppedJob
from sphere_replay.runs.table import Table

DOMAINS = ("vision", "instruct", "coding")
"""Packages whose module `domain` exports `DOMAIN`; a new one is one package and one word here."""


@dataclass(frozen=True)
class Option:
    """A setting that has a place of its own on the command line: `--name`."""

    name: str
    help: str
    kind: type[str] | type[int] | type[float] = str
    metavar: str | None = None
    also_set: bool = False
    """Whether `--set` takes it too, for commands that have no such option."""


@dataclass(frozen=True)
class Domain:
    """What a domain offers to runs and reports.

    Its module `job`, which may be heavy, has `make_job(config, data, out, progress)`; what that
    needs is in the extra that is called like the domain.
    """

    config: type[RunConfig]
    """Of its runs."""
    names: Callable[[], list[str]]
    """Of its presets, with those that plug-ins have brought."""
    resolve: Callable[..., RunConfig]
    """Preset and settings to a full configuration."""
    provenance: Callable[[Any, str], str]
    """Where a setting's value comes from, if not from the paper."""
    tables: tuple[Table, ...] = ()
    options: tuple[Option, ...] = ()
    """Settings that not every domain has; the help says nothing of the domain."""

    @property
    def name(self) -> str:
        """That of its package."""
        return self.config.DOMAIN

    def make_job(
        self, config: RunConfig, data: Path | None, out: Path, progress: bool
    ) -> SteppedJob | LoopingJob:
        """The job of a configuration, which has taken no step yet.

        Args:
            config: The run.
            data: Folder of data; default `$SPHERE_DATA`.
            out: Folder of the runs, which may share what is made on this machine.
            progress: Whether to show progress of loading.
        """
        with needing(self.name):
            module = importlib.import_module(f"sphere_replay.{self.name}.job")
            job: SteppedJob | LoopingJob = module.make_job(config, data, out, progress)
        return job


PLUGGED: dict[str, Table] = {}
"""Tables that plug-ins have brought."""


@cache
def domain(name: str) -> Domain:
    """The domain of a name."""
    found: Domain = importlib.import_module(f"sphere_replay.{name}.domain").DOMAIN
    return found


def domains() -> Iterator[Domain]:
    """All of them."""
    return map(domain, DOMAINS)


def domain_of(preset: str) -> Domain:
    """The domain that has a preset."""
    for candidate in domains():
        if preset in candidate.names():
            return candidate
    raise ConfigError(unknown("preset", preset, all_presets()))


def resolve(preset: str, **settings: Any) -> RunConfig:
    """The full configuration of a preset of any domain."""
    return domain_of(preset).resolve(preset, **settings)


def saved_config(saved: Mapping[str, Any]) -> RunConfig:
    """The configuration in a run's `config.json`, of whichever domain it is."""
    for each in domains():
        if each.config.needs() <= set(saved):
            return each.config.from_dict(saved)
    raise ConfigError("this is no configuration of a run: its settings are those of no domain")


def all_presets() -> list[str]:
    """The presets of every domain."""
    return [preset for each in domains() for preset in each.names()]


def options() -> dict[str, tuple[Option, list[str]]]:
    """The options of all domains by name, each with the names of the domains that have it."""
    found: dict[str, tuple[Option, list[str]]] = {}
    for each in domains():
        for option in each.options:
            found.setdefault(option.name, (option, []))[1].append(each.name)
    return found


def tables() -> dict[str, Table]:
    """The tables of every domain and of plug-ins by name."""
    return {table.name: table for each in domains() for table in each.tables} | PLUGGED


def table_named(name: str, *, small: bool = False) -> Table:
    """A table, or its small form."""
    known = tables()
    one_of("table", name, known)
    if not small:
        return known[name]
    table = known[name].small()
    if table.preset not in all_presets():
        raise ConfigError(f"table {name} has no small form: leave out --small")
    return table
