"""Options that several commands share, so that they mean the same everywhere."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphere_replay.errors import UsageError

if TYPE_CHECKING:
    from sphere_replay.config import RunConfig

_OWN_PLACES = ("preset", "dataset", "host", "select", "seed")
"""Settings of every domain that are not for `--set`."""


def add_run_options(parser: argparse.ArgumentParser, *, select: str = "uniform") -> None:
    """What identifies a run, but for its seed."""
    from sphere_replay.runs.domains import options

    parser.add_argument("preset", metavar="PRESET", help="a preset's name; `sphere ls` lists them")
    parser.add_argument("--host", default="er", help="the learner (default: er)")
    parser.add_argument(
        "--select", default=select, help=f"how memories are chosen for replay (default: {select})"
    )
    add_domain_options(parser, *options())
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


def add_domain_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Options that not every domain has: presets know their values, and refuse those of others."""
    from sphere_replay.runs.domains import options

    for name in names:
        option, owners = options()[name]
        parser.add_argument(
            f"--{name}",
            type=option.kind,
            metavar=option.metavar,
            help=f"{', '.join(owners)}: {option.help}",
        )


def add_small_option(parser: argparse.ArgumentParser) -> None:
    """Which scale of a table is meant."""
    parser.add_argument(
        "--small",
        action="store_true",
        help="the table at the scale of its -small preset, which a CPU can run",
    )


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


def add_record_option(parser: argparse.ArgumentParser) -> None:
    """What is kept for `sphere inspect` and `sphere report`."""
    parser.add_argument(
        "--record",
        type=int,
        default=0,
        metavar="N",
        help="keep N rescorings to look at with `sphere inspect`; changes no result",
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """How results are shown."""
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument("--json", action="store_true", help="machine-readable output only")


def config_from(arguments: argparse.Namespace, *, seed: int) -> "RunConfig":
    """The resolved configuration that the options describe."""
    from sphere_replay.runs.domains import options, resolve

    settings = parse_settings(arguments.set)
    for name in options():
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
    from sphere_replay.runs.domains import options

    settings: dict[str, Any] = {}
    placed = {name for name, (option, _) in options().items() if not option.also_set}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"--set takes NAME=VALUE, got {pair!r}")
        if name in placed.union(_OWN_PLACES):
            raise UsageError(f"{name} has a place of its own on the command line, not in --set")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    return settings
