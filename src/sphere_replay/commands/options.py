"""Options that several commands share, so that they mean the same everywhere."""

import argparse
import json
from pathlib import Path
from typing import Any

from sphere_replay.usage import UsageError
from sphere_replay.vision.config import ConfigError, VisionConfig
from sphere_replay.vision.presets import resolve

_OWN_OPTIONS = ("dataset", "host", "select", "noise", "seed")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What identifies a run."""
    parser.add_argument("preset", metavar="PRESET", help="a preset's name; `sphere ls` lists them")
    parser.add_argument("--host", default="er", help="the learner (default: er)")
    parser.add_argument(
        "--select", default="uniform", help="how memories are chosen for replay (default: uniform)"
    )
    parser.add_argument(
        "--noise", type=float, default=0.4, metavar="RATE", help="share of wrong labels (0.4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="fixes everything random (default: 0)")
    parser.add_argument("--limit", type=int, metavar="N", help="use N examples of the stream")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override any setting that `sphere show` prints, e.g. --set lr=0.03; repeatable",
    )


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Where runs are kept and data come from."""
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="run folders")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of Parquet files (default: $SPHERE_DATA)"
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """How results are shown."""
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument("--json", action="store_true", help="machine-readable output only")


def config_from(arguments: argparse.Namespace) -> VisionConfig:
    """The resolved configuration that the options describe."""
    overrides = parse_settings(arguments.set)
    if arguments.limit is not None:
        overrides["limit"] = arguments.limit
    try:
        return resolve(
            arguments.preset,
            arguments.host,
            arguments.select,
            arguments.noise,
            arguments.seed,
            **overrides,
        )
    except (ConfigError, TypeError, ValueError) as error:
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
