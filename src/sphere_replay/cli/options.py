"""Options that several commands share, so that they mean the same everywhere."""

import argparse
import json
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphere_replay.errors import UsageError, UserError, unknown

if TYPE_CHECKING:
    from sphere_replay.codebase import Code
    from sphere_replay.config import RunConfig
    from sphere_replay.runs.table import Table

_OWN_PLACES = ("preset", "host", "select", "seed")
"""Settings of every domain that are not for `--set`."""

_SHARED: dict[str, dict[str, Any]] = {
    "--seed": {"type": int, "help": "fixes everything random (default: 0)"},
    "--set": {
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE",
        "help": "override any setting that `sphere show` prints, e.g. --set lr=0.03, or an option "
        "of select, host, network or optimizer, e.g. --set select.agreement=0.5; repeatable",
    },
    "--plugin": {
        "action": "append",
        "default": [],
        "dest": "plugins",
        "metavar": "FILE",
        "help": "load your own parts from a Python file or a module; repeatable",
    },
    "--columns": {"nargs": "+", "metavar": "NAME", "help": "only these columns"},
    "--out": {
        "type": Path,
        "default": Path("runs"),
        "metavar": "DIR",
        "help": "where run folders are (default: runs)",
    },
    "--data": {
        "type": Path,
        "metavar": "DIR",
        "help": "folder of Parquet files, for coding of JSONL files (default: $SPHERE_DATA)",
    },
    "--record": {
        "type": int,
        "default": 0,
        "metavar": "N",
        "help": "keep up to N rescorings to look at with `sphere inspect`; changes no result",
    },
    "--track": {
        "action": "append",
        "default": [],
        "metavar": "NAME",
        "help": "send the log to tensorboard, wandb, wandb-offline, mlflow or trackio as well; "
        "repeatable; changes no result",
    },
    "--accept-edited": {
        "action": "store_true",
        "help": "show results that do not fit their checksums, too, and say so in every table",
    },
    "--quiet": {"action": "store_true", "help": "no progress bars"},
    "--json": {"action": "store_true", "help": "machine-readable output only"},
}
"""What several commands have, as argparse takes it."""


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Options that mean the same in every command that has them."""
    for name in names:
        parser.add_argument(name, **_SHARED[name])


def add_run_options(parser: argparse.ArgumentParser, *, select: str = "uniform") -> None:
    """What identifies a run, but for its seed."""
    from sphere_replay.runs.domains import options

    parser.add_argument(
        "preset",
        metavar="PRESET",
        help="a preset's name; `sphere ls` lists them; or config.json of a run that was made",
    )
    parser.add_argument("--host", help="the learner (default: er)")
    parser.add_argument("--select", help=f"how memories are chosen for replay (default: {select})")
    parser.set_defaults(default_select=select)
    # Not every domain has these: presets know their values, and refuse those of others.
    for name, (option, owners) in options().items():
        parser.add_argument(
            f"--{name}",
            type=option.kind,
            metavar=option.metavar,
            help=f"{', '.join(owners)}: {option.help}",
        )
    add_options(parser, "--set", "--plugin")


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """Which runs of which table are meant; the same words find what they have made."""
    parser.add_argument(
        "table",
        metavar="TABLE",
        help="a table's name; `sphere ls` lists them; or an experiment's file (.toml)",
    )
    parser.add_argument("--preset", help="the table with another preset of its domain")
    parser.add_argument(
        "--development", action="store_true", help="development seeds (1000, 1001, ...)"
    )
    add_options(parser, "--set")
    # Presets know their values, and refuse what they have not; no domain is asked about the help.
    parser.add_argument("--device", help="cpu or cuda (default: the preset's)")
    parser.add_argument("--limit", type=int, metavar="N", help="use N examples of the stream")
    add_options(parser, "--plugin")
    parser.add_argument(
        "--small",
        action="store_true",
        help="the table at the scale of its -small preset, which a CPU can run",
    )


def check_known(kind: str, chosen: Iterable[str] | None, known: Collection[str]) -> None:
    """Refuse a name, such as a row's or a column's, that does not exist."""
    for name in chosen or ():
        if name not in known:
            raise UsageError(unknown(kind, name, known))


def table_from(arguments: argparse.Namespace) -> tuple["Table", dict[str, Any]]:
    """The table that the options describe, and what its runs have beyond it."""
    from sphere_replay.runs import domains
    from sphere_replay.runs.experiment import SUFFIX, load_experiment

    if arguments.small and arguments.preset:
        raise UsageError("--small chooses the preset: leave out --preset")
    if getattr(arguments, "seeds", None) is not None and arguments.seeds < 1:
        raise UsageError("--seeds counts from 1")
    if Path(arguments.table).suffix == SUFFIX:
        if arguments.small:
            raise UsageError("--small is for tables by name: a file says its preset itself")
        table = load_experiment(arguments.table)
    else:
        table = domains.table_named(arguments.table, small=arguments.small)
    settings = settings_from(arguments, ("device", "limit"))
    return table.with_preset(arguments.preset) if arguments.preset else table, settings


def table_words(arguments: argparse.Namespace) -> list[str]:
    """The options of a table again, for a command that makes its runs."""
    words = [arguments.table]
    for option in ("preset", "device", "limit"):
        if (chosen := getattr(arguments, option)) is not None:
            words += [f"--{option}", str(chosen)]
    words += ["--small"] * arguments.small + ["--development"] * arguments.development
    for plugin in [*arguments.first_plugins, *arguments.plugins]:
        words += ["--plugin", plugin]
    for pair in arguments.set:
        words += ["--set", pair]
    return words


def warn_of_others(made_by: Iterable["Code | None"]) -> None:
    """Say on standard error, however quiet a command is, that shown results are of other code."""
    from sphere_replay.codebase import warning_of_others

    if sentence := warning_of_others(made_by):
        print(f"sphere: {sentence}", file=sys.stderr)


def add_path_option(parser: argparse.ArgumentParser, name: str, default: str, meaning: str) -> None:
    """A folder, or a file if its default has a suffix."""
    parser.add_argument(
        name,
        type=Path,
        default=Path(default),
        metavar="FILE" if Path(default).suffix else "DIR",
        help=f"{meaning} (default: {default})",
    )


def config_from(arguments: argparse.Namespace, *, seed: int | None) -> "RunConfig":
    """The resolved configuration that the options describe."""
    from sphere_replay.runs.domains import resolve
    from sphere_replay.runs.settings import with_settings

    settings = settings_from(arguments)
    path = Path(arguments.preset)
    if path.suffix == ".json" or (path / "config.json").is_file():
        if arguments.host or arguments.select:
            raise UsageError(f"{path} says host and selection: leave out --host and --select")
        given = {} if seed is None else {"seed": seed}
        return with_settings(read_config(path), settings | given)
    try:
        return resolve(
            arguments.preset,
            host=arguments.host or "er",
            select=arguments.select or arguments.default_select,
            seed=seed or 0,
            **settings,
        )
    except TypeError as error:  # a list, say, where a preset looks up a name
        raise UsageError(str(error)) from error


def read_config(path: Path) -> "RunConfig":
    """The configuration of a run that was made; a word on standard error if by other code."""
    from sphere_replay.runs.domains import saved_config
    from sphere_replay.storage.files import read_json

    try:
        saved = read_json(path / "config.json" if path.is_dir() else path)
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        config = saved_config(saved)
    except UserError as error:
        raise UsageError(f"{error}{_from_plugins(path, saved)}") from error
    for change in config.changed_code(saved):
        print(f"sphere: {path} was made by other code: {change}", file=sys.stderr)
    return config


def _from_plugins(path: Path, saved: dict[str, Any]) -> str:
    """A word on the plug-ins that a saved run took parts from, which may not be loaded."""
    from sphere_replay.storage.files import read_json

    code = saved.get("code")
    parts = [part for part in code if part != "sphere_replay"] if isinstance(code, dict) else []
    if not parts:
        return ""
    manifest = (path if path.is_dir() else path.parent) / "manifest.json"
    plugins = read_json(manifest).get("plugins", {}) if manifest.is_file() else {}
    sources = {str(entry["source"]) for entry in plugins.values() if entry["source"]}
    named = " ".join(f"--plugin {source}" for source in sorted(sources)) or "--plugin FILE"
    return f"; the run has its {' and '.join(parts)} from a plug-in: give it by {named}"


def settings_from(
    arguments: argparse.Namespace, names: Iterable[str] | None = None
) -> dict[str, Any]:
    """What is said by `--set` and by some options of the domains; None: by all of them.

    Values of NAME=VALUE are read as JSON where they are JSON, and as text where not.
    """
    from sphere_replay.runs.domains import options
    from sphere_replay.runs.settings import spelled_out

    settings: dict[str, Any] = {}
    placed = {name for name, (option, _) in options().items() if not option.also_set}
    for pair in arguments.set:
        name, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"--set takes NAME=VALUE, got {pair!r}")
        if name in placed.union(_OWN_PLACES):
            raise UsageError(f"{name} has a place of its own on the command line, not in --set")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    settings = spelled_out(settings)
    for name in options() if names is None else names:
        if (value := getattr(arguments, name)) is not None:
            settings[name] = value
    return settings
