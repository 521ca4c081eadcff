"""Options that several commands share, so that they mean the same everywhere."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphere_replay.errors import UsageError, unknown

if TYPE_CHECKING:
    from sphere_replay.reports.catalog import Table
    from sphere_replay.runs.domains import RunConfig

_OWN_OPTIONS = ("preset", "dataset", "model", "host", "select", "noise", "order", "seed", "device")
_ONLY_IF_GIVEN = ("noise", "order", "model", "limit", "device")
"""Options that not every domain has: presets know their values, and refuse those of others."""


def add_run_options(parser: argparse.ArgumentParser, *, select: str = "uniform") -> None:
    """What identifies a run, but for its seed."""
    parser.add_argument("preset", metavar="PRESET", help="a preset's name; `sphere ls` lists them")
    parser.add_argument("--host", default="er", help="the learner (default: er)")
    parser.add_argument(
        "--select", default=select, help=f"how memories are chosen for replay (default: {select})"
    )
    parser.add_argument(
        "--noise", type=float, metavar="RATE", help="vision: share of wrong labels (default: 0.4)"
    )
    parser.add_argument(
        "--order", help="instruct: number of a task order, or tasks with commas (default: 0)"
    )
    parser.add_argument("--model", metavar="ID", help="instruct, coding: a hub id or folder")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="vision: use N examples of the stream"
    )
    add_device_option(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override any setting that `sphere show` prints, e.g. --set lr=0.03; repeatable",
    )


def add_seed_option(parser: argparse.ArgumentParser) -> None:
    """Which of the runs that differ by chance alone."""
    parser.add_argument("--seed", type=int, default=0, help="fixes everything random (default: 0)")


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """On which processor a run computes; part of what it is, because sums are rounded there."""
    parser.add_argument("--device", help="vision, coding: cpu or cuda (default: the preset's)")


def add_small_option(parser: argparse.ArgumentParser) -> None:
    """Which scale of a table is meant."""
    parser.add_argument(
        "--small",
        action="store_true",
        help="the table at the scale of its -small preset, which a CPU can run",
    )


def table_named(name: str, *, small: bool) -> "Table":
    """A table of the catalog, or its small form."""
    from sphere_replay.reports.catalog import TABLES

    if name not in TABLES:
        raise UsageError(unknown("table", name, TABLES))
    return TABLES[name].small() if small else TABLES[name]


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Where runs are kept and data come from."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="where run folders are (default: runs)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of Parquet files, for coding of JSONL files (default: $SPHERE_DATA)",
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """How results are shown."""
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument("--json", action="store_true", help="machine-readable output only")


def config_from(arguments: argparse.Namespace, *, seed: int) -> "RunConfig":
    """The resolved configuration that the options describe."""
    from sphere_replay.runs.domains import resolve

    settings = parse_settings(arguments.set)
    for name in _ONLY_IF_GIVEN:
        if (value := getattr(arguments, name)) is not None:
            settings[name] = value
    try:
        return resolve(
            arguments.preset,
            host=arguments.host,
            select=arguments.select,
            seed=seed,
            **settings,
        )
    except TypeError as error:  # a list, say, where a preset looks up a name
        raise UsageError(str(error)) from error


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs, values read as JSON where they are JSON and as text where not."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"--set takes NAME=VALUE, got {pair!r}")
        if name in _OWN_OPTIONS:
            raise UsageError(f"{name} has a place of its own on the command line, not in --set")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    return settings
