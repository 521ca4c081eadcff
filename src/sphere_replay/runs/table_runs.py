"""The runs that fill a table: one for each row, column and seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphere_replay.config import RunConfig
from sphere_replay.errors import UsageError
from sphere_replay.runs.domains import resolve
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.launch import run_folder
from sphere_replay.runs.settings import merged
from sphere_replay.runs.table import Table

EVALUATION_SEEDS = range(1000)
"""Seeds of reported numbers, used from the first on."""
DEVELOPMENT_SEEDS = range(1000, 2000)
"""Seeds for every choice; no reported number ever comes from them."""


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


def nothing_of(runs: Iterable[TableRun], place: Path, remedy: str) -> UsageError:
    """The error of a table without results, with a word on those that are nearly the same."""
    hint = namesakes(runs, place)
    return UsageError(
        "; ".join(filter(None, [f"no results in {place}; make them with: {remedy}", hint]))
    )


def namesakes(runs: Iterable[TableRun], place: Path) -> str:
    """A word on finished runs in a place that are called like missing ones, or nothing."""
    places = {run_folder(run.config, place).path: run.config.run_name for run in runs}
    missing = {stem for path, stem in places.items() if not RunFolder(path).finished}
    others = {
        path.parent
        for path in place.glob("*/results.json")
        if path.parent not in places and path.parent.name.rpartition("-")[0] in missing
    }
    if not others:
        return ""
    return (
        f"{len(others)} runs there have the same names, but other settings, another version, or "
        "other code of a plug-in"
    )
