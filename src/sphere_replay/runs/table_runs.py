"""The runs that fill a table: one for each row, column and seed."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphere_replay.config import RunConfig
from sphere_replay.errors import UsageError
from sphere_replay.runs.domains import resolve
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.launch import run_folder
from sphere_replay.runs.settings import dotted, in_words, merged
from sphere_replay.runs.table import Table
from sphere_replay.storage.files import read_json

EVALUATION_SEEDS = range(1000)
"""Seeds of reported numbers, used from the first on."""
DEVELOPMENT_SEEDS = range(1000, 2000)
"""Seeds for every choice; no reported number ever comes from them."""
_SEED = re.compile(r"-seed(\d+)-\w+$")
"""The end of a run's folder name."""
_TOLD = 3
"""Kinds of other runs that a hint tells of."""
_FEW = 4
"""Settings that a hint tells with their values."""


@dataclass(frozen=True)
class TableRun:
    """A run of a table: the method and column it belongs to."""

    method: str
    column: str
    config: RunConfig


def runs_of(
    table: Table,
    seeds: Iterable[int],
    methods: Iterable[str] | None = None,
    columns: Iterable[str] | None = None,
    **settings: Any,
) -> list[TableRun]:
    """Runs of the table (or of some rows and columns), seed by seed: any part is balanced."""
    methods = set(table.methods if methods is None else methods)
    columns = set(table.columns if columns is None else columns)
    return [
        TableRun(
            row.method,
            column,
            resolve(
                table.preset,
                host=row.host,
                select=row.select,
                **merged(_numbered(table, number), table.settings, row.settings, chosen, settings),
            ),
        )
        for number in seeds
        for row in table.rows
        if row.method in methods
        for column, chosen in table.columns.items()
        if column in columns
    ]


def seeds_of(table: Table, count: int | None = None, *, development: bool = False) -> Sequence[int]:
    """Seeds of a table's runs: its own, or evaluation or development seeds; the first so many."""
    if table.seeds is not None and not development:
        return table.seeds[:count]
    return (DEVELOPMENT_SEEDS if development else EVALUATION_SEEDS)[:count]


def _numbered(table: Table, number: int) -> dict[str, Any]:
    """The settings of a run by its number, which is its seed or counts (order, seed) pairs."""
    if table.orders is None:
        return {"seed": number}
    first = DEVELOPMENT_SEEDS.start if number in DEVELOPMENT_SEEDS else EVALUATION_SEEDS.start
    seed, order = divmod(number - first, table.orders)
    return {"order": str(order), "seed": first + seed}


def seeds_in(table: Table, seeds: Sequence[int], place: Path) -> Sequence[int]:
    """Those of the seeds that folders in a place are called by; the first, if there are none.

    No others have runs there, and the settings of a thousand runs take seconds.
    """
    names = (_SEED.search(path.name) for path in place.glob("*-seed*"))
    there = {int(name[1]) for name in names if name is not None}
    found = [number for number in seeds if _numbered(table, number)["seed"] in there]
    return found or seeds[:1]


def nothing_of(runs: Iterable[TableRun], place: Path, remedy: str) -> UsageError:
    """The error of a table without results, with a word on those that are nearly the same."""
    hint = namesakes(runs, place)
    return UsageError(
        "; ".join(filter(None, [f"no results in {place}; make them with: {remedy}", hint]))
    )


def namesakes(runs: Iterable[TableRun], place: Path) -> str:
    """A word on finished runs in a place that are called like missing ones, or nothing."""
    places = {run_folder(run.config, place).path: run.config for run in runs}
    missing: dict[str, list[RunConfig]] = {}
    for path, config in places.items():
        if not RunFolder(path).finished:
            missing.setdefault(config.run_name, []).append(config)
    others: Counter[str] = Counter()
    for path in sorted(place.glob("*/results.json")):
        name = path.parent.name.rpartition("-")[0]
        if path.parent not in places and name in missing:
            # Methods may share a name: it is taken for the one that it has most in common with.
            others[_remedy(min((_other(path.parent, c) for c in missing[name]), key=len))] += 1
    return "; ".join(
        f"{count} runs there have the same names, but {what}"
        for what, count in others.most_common(_TOLD)
    )


def _other(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Settings of a run in a folder that another configuration has not, as they are there."""
    try:
        saved = read_json(folder / "config.json")
    except (OSError, ValueError):  # whoever reads the run will say so
        return {}
    there, here = (
        dotted({name: tree[name] for name in tree if name not in ("constants", "code")})
        for tree in (saved, config.to_dict())
    )
    names = sorted(there.keys() | here.keys())
    return {name: there.get(name) for name in names if there.get(name) != here.get(name)}


def _remedy(other: Mapping[str, Any]) -> str:
    """What a run is of, and the options by which it is found."""
    if not other:
        return "another version, or other code of a plug-in"
    if len(other) > _FEW:
        return f"other settings ({', '.join(other)})"
    given = {name: value for name, value in other.items() if value is not None}
    words = [
        f"--{name} {value}" if name in ("limit", "device") else f"--set {name}={json.dumps(value)}"
        for name, value in given.items()
    ]
    add = f"add {' '.join(words)}" if words else ""
    out = " and ".join(name for name in other if name not in given)
    leave = f"leave out {out}" if out else ""
    return f"other settings (there: {in_words(other)}; {', '.join(filter(None, (add, leave)))})"
