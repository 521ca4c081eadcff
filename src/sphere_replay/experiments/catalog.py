"""The tables that can be run and printed: which runs they need, and what the paper printed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sphere_replay.experiments.collection import Cell
from sphere_replay.experiments.tables import Measure, Published, TableSpec
from sphere_replay.vision.presets import resolve

EVALUATION_SEEDS = range(1000)
"""Seeds of reported numbers, used from the first on."""
DEVELOPMENT_SEEDS = range(1000, 2000)
"""Seeds for every choice; no reported number ever comes from them."""


@dataclass(frozen=True)
class Row:
    """A method of a table and how to run it."""

    method: str
    host: str
    select: str
    baseline: str | None = None


@dataclass(frozen=True)
class Table:
    """A table: its rows and columns as runs of a preset."""

    spec: TableSpec
    preset: str
    rows: tuple[Row, ...]
    columns: dict[str, dict[str, Any]]
    """Column names with the settings they stand for."""

    def cells(
        self,
        seeds: Iterable[int],
        methods: Iterable[str] | None = None,
        columns: Iterable[str] | None = None,
        **settings: Any,
    ) -> list[Cell]:
        """Runs of the table (or of some rows and columns), seed by seed: any part is balanced."""
        methods = set(self.spec.methods if methods is None else methods)
        columns = set(self.columns if columns is None else columns)
        return [
            Cell(
                row.method,
                column,
                resolve(self.preset, row.host, row.select, seed=seed, **(chosen | settings)),
            )
            for seed in seeds
            for row in self.rows
            if row.method in methods
            for column, chosen in self.columns.items()
            if column in columns
        ]


def _noise(*rates: float) -> dict[str, dict[str, Any]]:
    return {"Clean" if rate == 0 else f"{100 * rate:g}%": {"noise": rate} for rate in rates}


def _published(
    columns: Iterable[str], metric: str, rows: dict[str, str]
) -> dict[tuple[str, str, str], Published]:
    """Published values from text as printed: "87.3 0.8 65.3 4.0 ..." (mean and SD per column)."""
    values = {}
    for method, text in rows.items():
        numbers = [float(number) for number in text.split()]
        for column, mean, sd in zip(columns, numbers[::2], numbers[1::2], strict=True):
            values[method, column, metric] = Published(mean, sd)
    return values


def _table(
    name: str,
    title: str,
    preset: str,
    rows: tuple[Row, ...],
    columns: dict[str, dict[str, Any]],
    published: dict[str, str] | None = None,
) -> Table:
    spec = TableSpec(
        name=name,
        title=title,
        methods={row.method: row.baseline for row in rows},
        columns=tuple(columns),
        measures=(Measure("class_il"),),
        published=_published(columns, "class_il", published or {}),
    )
    return Table(spec, preset, rows, columns)


_ER = Row("ER", "er", "uniform")
_ER_SPHERE = Row("ER + SPHERE", "er", "sphere", "ER")
_ER_MIR = Row("MIR", "er", "mir", "ER")
_DER = Row("DER++", "der-pp", "uniform")
_ACE = Row("ER-ACE", "er-ace", "uniform")
_ACE_SPHERE = Row("ER-ACE + SPHERE", "er-ace", "sphere", "ER-ACE")

TABLES: dict[str, Table] = {
    "digits": _table(
        "digits",
        "Split digits, Class-IL accuracy (%)",
        "digits",
        (_ER, _ER_MIR, _ER_SPHERE, _ACE, _ACE_SPHERE),
        _noise(0.0, 0.4),
    ),
    "mnist": _table(
        "mnist",
        "Split MNIST, Class-IL accuracy (%), K = 500",
        "mnist",
        (_ER, _ER_SPHERE, _ER_MIR, _DER, _ACE, _ACE_SPHERE),
        _noise(0.0, 0.2, 0.4, 0.6, 0.8),
        {
            "ER": "87.3 0.8 65.3 4.0 46.9 5.4 31.3 5.8 19.2 2.9",
            "ER + SPHERE": "86.3 1.1 70.8 6.7 54.1 4.9 31.5 5.5 19.7 3.1",
            "MIR": "88.2 0.6 61.6 6.6 45.7 5.0 31.5 5.5 20.6 2.5",
            "DER++": "90.7 0.6 77.5 6.0 62.1 4.6 38.0 3.5 20.7 3.0",
            "ER-ACE": "88.8 1.1 75.7 9.4 66.2 2.8 43.7 2.9 21.3 2.8",
            "ER-ACE + SPHERE": "89.2 0.4 81.6 3.8 69.8 3.2 45.8 4.5 21.3 2.1",
        },
    ),
}
