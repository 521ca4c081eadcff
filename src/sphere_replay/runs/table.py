"""What a table is: rows and columns as runs of a preset, measures, and published values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from sphere_replay.runs.metrics import METRICS, Metric
from sphere_replay.runs.settings import dotted, in_words

SMALL_ENDING = "-small"
"""How the names of presets and tables at a smaller scale end."""


class Unit(StrEnum):
    """How accuracies, stored in [0, 1], are shown."""

    PERCENT = "percent"
    FRACTION = "fraction"

    @property
    def scale(self) -> int:
        """What a stored number is multiplied by."""
        return 100 if self is Unit.PERCENT else 1


class Spread(StrEnum):
    """Which standard deviation a table reports; the paper uses both."""

    POPULATION = "population"
    """sqrt(Σ (x - mean)² / n): the spread of exactly these seeds; needs two."""
    SAMPLE = "sample"
    """sqrt(Σ (x - mean)² / (n - 1)): an estimate for all seeds; needs two."""

    @property
    def formula(self) -> str:
        """The definition in one line, for the foot of a table."""
        divisor = "n" if self is Spread.POPULATION else "(n - 1)"
        return f"{self.value} standard deviation, sqrt(Σ (x - mean)² / {divisor}), n seeds"


@dataclass(frozen=True)
class Published:
    """A value from a paper, in the unit of the table."""

    mean: float
    sd: float | None = None

    @classmethod
    def printed(cls, text: str) -> "Published":
        """A value as printed: "mean/SD", or a mean alone."""
        mean, _, sd = text.partition("/")
        return cls(float(mean), float(sd) if sd else None)


@dataclass(frozen=True)
class Measure:
    """A metric and how it is taken over the runs: their mean, or their extreme."""

    metric: str
    over_runs: Literal["mean", "min", "max"] = "mean"

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"unknown metric {self.metric!r}; known: {', '.join(METRICS)}")

    @property
    def definition(self) -> Metric:
        """The metric itself."""
        return METRICS[self.metric]

    @property
    def name(self) -> str:
        """The metric's name, or e.g. `min_final_accuracy`."""
        return self.metric if self.over_runs == "mean" else f"{self.over_runs}_{self.metric}"

    @property
    def title(self) -> str:
        """The heading, with an arrow to where better is."""
        prefix = "" if self.over_runs == "mean" else f"{self.over_runs.capitalize()}. "
        return f"{prefix}{self.definition.title} {'↑' if self.definition.higher_is_better else '↓'}"


@dataclass(frozen=True)
class TableRow:
    """A method of a table and how to run it."""

    method: str
    host: str
    select: str
    baseline: str | None = None
    """The method that its paired gain is taken against."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What its runs have beyond their preset."""


CellKey = tuple[str, str, str]
"""Method, column and name of the measure."""
PublishedCells = dict[CellKey, Published]
Columns = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Table:
    """A table without its numbers: rows and columns say which runs of a preset fill it."""

    name: str
    title: str
    preset: str
    rows: tuple[TableRow, ...]
    columns: Columns
    """Column names with the settings they stand for."""
    measures: tuple[Measure, ...]
    spread: Spread = Spread.POPULATION
    unit: Unit = Unit.PERCENT
    published: PublishedCells = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What every run of the table has beyond its preset."""
    orders: int | None = None
    """Of the tasks, if there are several: a run is then an (order, seed) pair."""
    paper_preset: str | None = None
    """Of the published values; None: the preset above."""
    seeds: tuple[int, ...] | None = None
    """Those of its runs; None: evaluation seeds, as many as are asked for."""
    results: str | None = None
    """The table whose saved results have its rows, under the same names; None: its own."""
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of settings that a search of its methods tries."""

    def __post_init__(self) -> None:
        methods = self.methods
        for row in self.rows:
            if row.baseline is not None and row.baseline not in methods:
                raise ValueError(
                    f"table {self.name}: the baseline {row.baseline!r} of {row.method!r} is not "
                    f"one of its methods: {', '.join(methods)}"
                )
        keys = set(self.cell_keys())
        for key in self.published:
            if key not in keys:
                raise ValueError(f"table {self.name}: {key} has a published value but no cell")

    @property
    def methods(self) -> tuple[str, ...]:
        """The rows' names, in order."""
        return tuple(row.method for row in self.rows)

    @property
    def relative(self) -> bool:
        """Runs are not of the published scale: compare gains and orders with it, never values."""
        return bool(self.published) and self.paper_preset not in (None, self.preset)

    def cell_keys(self) -> list[CellKey]:
        """Every cell, row by row."""
        return [
            (row.method, column, measure.name)
            for row in self.rows
            for column in self.columns
            for measure in self.measures
        ]

    def with_preset(self, preset: str) -> "Table":
        """The same rows and columns at another scale.

        Its numbers are not comparable with the paper's, only their differences and order are.
        """
        return replace(self, preset=preset, paper_preset=self.paper_preset or self.preset)

    def telling(self, settings: Mapping[str, Any]) -> "Table":
        """The same, whose title tells what its runs have beyond it: no number goes without."""
        known = dotted({"preset": self.preset, **self.settings})
        other = {
            name: value
            for name, value in dotted(settings).items()
            if name not in known or known[name] != value
        }
        return replace(self, title=f"{self.title} ({in_words(other)})") if other else self

    def small(self) -> "Table":
        """The table of the `-small` preset, under a name of its own."""
        table = self.with_preset(self.preset + SMALL_ENDING)
        title = f"{self.title}, preset {table.preset}"
        results = self.results and self.results + SMALL_ENDING
        return replace(table, name=self.name + SMALL_ENDING, title=title, results=results)

    def narrowed(self, methods: Iterable[str], columns: Iterable[str]) -> "Table":
        """The part of the table with the given rows and columns, in the given order."""
        rows = {row.method: row for row in self.rows}
        kept = tuple(rows[method] for method in methods)
        settings = {column: self.columns[column] for column in columns}
        names = {row.method for row in kept}
        published = {
            (method, column, measure): value
            for (method, column, measure), value in self.published.items()
            if method in names and column in settings
        }
        return replace(self, rows=kept, columns=settings, published=published)
