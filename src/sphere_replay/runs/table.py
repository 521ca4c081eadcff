"""What a table of the catalog is: rows and columns as runs of a preset, and published values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sphere_replay.errors import ConfigError
from sphere_replay.reports.collection import Cell
from sphere_replay.reports.tables import Measure, Published, TableSpec
from sphere_replay.runs.domains import all_presets, resolve

EVALUATION_SEEDS = range(1000)
"""Seeds of reported numbers, used from the first on."""
DEVELOPMENT_SEEDS = range(1000, 2000)
"""Seeds for every choice; no reported number ever comes from them."""
SMALL = "-small"
"""How the names of presets and tables at a smaller scale end."""

ABSENT = "--"
"""How the paper prints a cell that it leaves empty."""

PublishedCells = dict[tuple[str, str, str], Published]
"""By method, column and name of the measure."""


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
    settings: dict[str, Any] = field(default_factory=dict)
    """What every run of the table has beyond its preset."""
    orders: int | None = None
    """Of the tasks, if there are several: a run is then an (order, seed) pair."""
    paper_preset: str | None = None
    """Of the published values; None: the preset above."""

    def with_preset(self, preset: str) -> "Table":
        """The same rows and columns at another scale.

        Its numbers are not comparable with the paper's, only their differences and order are.
        """
        paper = self.paper_preset or self.preset
        spec = replace(self.spec, relative=bool(self.spec.published) and preset != paper)
        return replace(self, spec=spec, preset=preset, paper_preset=paper)

    def small(self) -> "Table":
        """The table of the `-small` preset, under a name of its own."""
        preset = self.preset + SMALL
        if preset not in all_presets():
            raise ConfigError(f"table {self.spec.name} has no small form: leave out --small")
        table = self.with_preset(preset)
        name, title = self.spec.name + SMALL, f"{self.spec.title}, preset {preset}"
        return replace(table, spec=replace(table.spec, name=name, title=title))

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
                resolve(
                    self.preset,
                    host=row.host,
                    select=row.select,
                    **(self._run(number) | self.settings | chosen | settings),
                ),
            )
            for number in seeds
            for row in self.rows
            if row.method in methods
            for column, chosen in self.columns.items()
            if column in columns
        ]

    def _run(self, number: int) -> dict[str, Any]:
        """The settings of a run by its number, which is its seed or counts (order, seed) pairs."""
        if self.orders is None:
            return {"seed": number}
        first = DEVELOPMENT_SEEDS.start if number in DEVELOPMENT_SEEDS else EVALUATION_SEEDS.start
        seed, order = divmod(number - first, self.orders)
        return {"order": str(order), "seed": first + seed}


def by_cell(measures: Iterable[Measure], texts: Mapping[tuple[str, str], str]) -> PublishedCells:
    """Published values from text as printed, by (method, column), in the order of the measures.

    A value is "mean/SD", or a mean alone, or "--".
    """
    names = [measure.name for measure in measures]
    values = {}
    for (method, column), text in texts.items():
        for name, value in zip(names, text.split(), strict=True):
            if value != ABSENT:
                mean, _, sd = value.partition("/")
                values[method, column, name] = Published(float(mean), float(sd) if sd else None)
    return values


def by_row(measure: Measure, columns: Iterable[str], rows: Mapping[str, str]) -> PublishedCells:
    """The same for tables of one measure, by method, in the order of the columns."""
    texts = {}
    for method, text in rows.items():
        for column, value in zip(columns, text.split(), strict=True):
            texts[method, column] = value
    return by_cell([measure], texts)
