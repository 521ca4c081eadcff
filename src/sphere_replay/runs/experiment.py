"""Experiments as TOML files: the rows, columns, settings and seeds of a table.

    preset = "digits"
    measures = ["tail_accuracy"]
    seeds = 5

    [settings]
    limit = 600

    [columns]
    "40%" = { noise = 0.4 }

    [[rows]]
    method = "ER"

    [[rows]]
    method = "ER + SPHERE"
    select = "sphere"
    baseline = "ER"

What a file says is checked when it is read; whether its runs can be made, when they are resolved.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, TypeVar, cast

from sphere_replay.config import one_of
from sphere_replay.errors import ConfigError, UserError
from sphere_replay.plugging import load
from sphere_replay.runs.metrics import METRICS
from sphere_replay.runs.settings import spelled_out
from sphere_replay.runs.table import (
    Measure,
    Published,
    PublishedCells,
    Spread,
    Table,
    TableRow,
    Unit,
)
from sphere_replay.runs.table_runs import DEVELOPMENT_SEEDS, EVALUATION_SEEDS

SUFFIX = ".toml"
"""How the name of an experiment's file ends."""
ABSENT = "--"
"""How the paper prints a cell that it leaves empty."""

_KEYS = (
    *("name", "title", "preset", "paper_preset", "measures", "spread", "unit", "orders"),
    "results",
    *("seeds", "development", "plugins", "settings", "columns", "rows", "grid"),
)
_ROW_KEYS = (*(entry.name for entry in fields(TableRow)), "published")
_ONE_COLUMN: dict[str, Any] = {"all": {}}

Value = TypeVar("Value")


class ExperimentError(UserError, ValueError):
    """A file that is no experiment; the message says where and why."""


def load_experiment(path: str | Path) -> Table:
    """The table that a file describes. Plug-ins it names, relative to itself, are loaded."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ExperimentError(f"there is no file {path}") from None
    except ValueError as error:  # neither TOML nor UTF-8
        raise ExperimentError(f"{path} is no TOML: {error}") from error
    try:
        for plugin in _taken(content, "plugins", list, []):
            beside = path.parent / str(plugin)
            load(beside if beside.exists() else str(plugin))
        return _table(path.stem, content)
    except (ConfigError, ValueError) as error:
        raise ExperimentError(f"{path}: {error}") from error


def tables_in(package: str) -> tuple[Table, ...]:
    """The tables that lie as files in the folder `tables` of a package, by name."""
    with as_file(files(package) / "tables") as folder:
        return tuple(map(load_experiment, sorted(folder.glob(f"*{SUFFIX}"))))


def _table(stem: str, content: Mapping[str, Any]) -> Table:
    _check_keys("key", content, _KEYS)
    name = _taken(content, "name", str, stem)
    preset = _taken(content, "preset", str)
    measures = tuple(map(_measure, _taken(content, "measures", list, ["class_il"])))
    columns = {
        column: spelled_out(_as(f"column {column!r}", settings, dict))
        for column, settings in _taken(content, "columns", dict, _ONE_COLUMN).items()
    }
    rows: list[TableRow] = []
    published: PublishedCells = {}
    for number, saved in enumerate(_taken(content, "rows", list), 1):
        row = _row(f"row {number}", _as(f"row {number}", saved, dict))
        if row.method in {other.method for other in rows}:
            raise ConfigError(f"row {number}: the method {row.method!r} is there already")
        rows.append(row)
        published |= _published(row.method, saved, columns, measures)
    if not rows or not columns:
        raise ConfigError("it has no rows or no columns, so there is nothing to run")
    return Table(
        name=name,
        title=_taken(content, "title", str, name),
        preset=preset,
        rows=tuple(rows),
        columns=columns,
        measures=measures,
        spread=_chosen(content, "spread", Spread, Spread.POPULATION),
        unit=_chosen(content, "unit", Unit, Unit.PERCENT),
        published=published,
        settings=spelled_out(_taken(content, "settings", dict, {})),
        orders=_taken(content, "orders", int, 0) or None,
        paper_preset=_taken(content, "paper_preset", str, "") or None,
        seeds=_seeds(content),
        results=_taken(content, "results", str, "") or None,
        grid={
            setting: tuple(_as(f"grid.{setting}", values, list))
            for setting, values in _grid(_taken(content, "grid", dict, {})).items()
        },
    )


def _row(place: str, saved: Mapping[str, Any]) -> TableRow:
    _check_keys(f"key of {place}", saved, _ROW_KEYS)
    try:
        return TableRow(
            method=_taken(saved, "method", str),
            host=_taken(saved, "host", str, "er"),
            select=_taken(saved, "select", str, "uniform"),
            baseline=_taken(saved, "baseline", str, "") or None,
            settings=spelled_out(_taken(saved, "settings", dict, {})),
        )
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def _published(
    method: str,
    saved: Mapping[str, Any],
    columns: Mapping[str, Any],
    measures: Sequence[Measure],
) -> PublishedCells:
    """Values as printed, by column: "87.3/0.8", one for each measure; "--" is none."""
    cells = {}
    for column, text in _taken(saved, "published", dict, {}).items():
        _check_keys(f"column of {method}'s published values", [column], columns)
        words = _as(f"published value of {method} in {column}", text, str).split()
        if len(words) != len(measures):
            raise ConfigError(
                f"{method} in {column}: {len(measures)} published values belong there, got {text!r}"
            )
        for measure, word in zip(measures, words, strict=True):
            if word != ABSENT:
                cells[method, column, measure.name] = Published.printed(word)
    return cells


def _measure(saved: Any) -> Measure:
    """A metric's name, or `{ metric = ..., over_runs = "min" }`."""
    given = {"metric": saved} if isinstance(saved, str) else _as("a measure", saved, dict)
    _check_keys("key of a measure", given, ("metric", "over_runs"))
    _check_keys("metric", [given.get("metric", "")], METRICS)
    over = given.get("over_runs", "mean")
    _check_keys("over_runs", [over], ("mean", "min", "max"))
    return Measure(given["metric"], cast(Any, over))


def _seeds(content: Mapping[str, Any]) -> tuple[int, ...] | None:
    """A count, or a list; of development seeds if it says so."""
    given, development = content.get("seeds"), _taken(content, "development", bool, False)
    if given is None and not development:
        return None
    known = DEVELOPMENT_SEEDS if development else EVALUATION_SEEDS
    if isinstance(given, list):
        for seed in given:
            if type(seed) is not int or seed not in known:
                raise ConfigError(f"seeds are whole numbers in {known}, got {seed!r}")
        return tuple(given)
    count = 10 if given is None else given
    if type(count) is not int or not 1 <= count <= len(known):
        raise ConfigError(f"seeds takes a count from 1 on, or a list, got {given!r}")
    return tuple(known[:count])


def _grid(content: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with a dot keep it: every list belongs to one of them."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        nested = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}.{option}": values for option, values in nested} or {name: value}
    return flat


def _taken(
    content: Mapping[str, Any], key: str, kind: type[Value], default: Value | None = None
) -> Value:
    if key not in content:
        if default is None:
            raise ConfigError(f"{key} is missing")
        return default
    return _as(key, content[key], kind)


def _as(place: str, value: Any, kind: type[Value]) -> Value:
    if type(value) is not kind:
        raise ConfigError(f"{place} takes {_IN_WORDS[kind]}, got {value!r}")
    found: Value = value
    return found


_IN_WORDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "a table of names and values",
}


def _chosen(
    content: Mapping[str, Any], key: str, kind: Callable[[str], Value], default: Value
) -> Value:
    try:
        return kind(content[key]) if key in content else default
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def _check_keys(kind: str, given: Mapping[str, Any] | Sequence[str], known: Any) -> None:
    for key in given:
        one_of(kind, str(key), known)
