"""From finished runs to the cells of a table, with what was published beside them."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sphere_replay.config import Pair
from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.statistics import mean, paired_difference, standard_deviation
from sphere_replay.runs.table import Measure, Published, Table, TableRow


@dataclass(frozen=True)
class Cell:
    """A number of a table with its interval, in the table's unit; None where there is nothing.

    As JSON, the cells of a table are called its rows: one a line.
    """

    method: str
    column: str
    metric: str
    mean: float | None
    """The mean over seeds; for a `min_` or `max_` measure, that extreme."""
    sd: float | None
    seeds: int
    """How many runs entered."""
    published: Published | None
    paired_gain: float | None
    """Mean improvement over the baseline on common seeds; positive is better for every metric."""
    ci95: tuple[float, float] | None
    published_gain: float | None = None
    """What `paired_gain` is in the paper; in relative tables, instead of `published`."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON; there is a published gain or a published value, not both."""
        shown = self.published and {"mean": self.published.mean, "sd": self.published.sd}
        interval = None if self.ci95 is None else list(self.ci95)
        row = {**vars(self), "published": shown, "ci95": interval}
        if self.published_gain is None:
            del row["published_gain"]
        return row


@dataclass(frozen=True)
class Agreement:
    """How far the methods of a column come in the paper's order."""

    column: str
    metric: str
    agreeing: int
    pairs: int
    """Of methods that were both run, and that the paper tells apart."""


@dataclass(frozen=True)
class Passes:
    """Passes through the network per stream example."""

    forward: float
    """All of them, those of scoring among them."""
    backward: float
    scored: float


def mean_passes(runs: Iterable[FinishedRun]) -> dict[str, Passes]:
    """What each method costs, over all of its runs that counted passes."""
    counted: dict[str, list[Mapping[str, float]]] = {}
    for run in runs:
        costs = run.results.get("costs", {})
        if "forward_per_example" in costs:
            counted.setdefault(run.method, []).append(costs)
    kinds = ("forward", "backward", "scored")
    return {
        method: Passes(*(mean([costs[f"{kind}_per_example"] for costs in found]) for kind in kinds))
        for method, found in counted.items()
    }


def fill(table: Table, runs: Iterable[FinishedRun]) -> list[Cell]:
    """Every cell of the table, row by row, also those that no run has filled yet."""
    places: dict[tuple[str, str], dict[Pair, Mapping[str, float]]] = {
        (method, column): {} for method in table.methods for column in table.columns
    }
    for run in runs:
        place = (run.method, run.column)
        if place not in places:
            raise ValueError(
                f"table {table.name} has no cell for method {run.method!r} in column "
                f"{run.column!r}; methods: {', '.join(table.methods)}; columns: "
                f"{', '.join(table.columns)}"
            )
        if run.pair in places[place]:
            raise ValueError(
                f"two results for {run.method!r}, {run.column!r}, seed {run.pair!r}: a run counts "
                "once"
            )
        places[place][run.pair] = run.results["metrics"]

    def values(method: str, column: str, metric: str) -> dict[Pair, float]:
        """One metric by seed; runs that do not determine it are left out."""
        return {
            pair: table.unit.scale * metrics[metric]
            for pair, metrics in places[method, column].items()
            if metric in metrics
        }

    cells = []
    for row in table.rows:
        for column in table.columns:
            for measure in table.measures:
                ours = values(row.method, column, measure.metric)
                theirs = values(row.baseline, column, measure.metric) if row.baseline else {}
                cells.append(_cell(table, row, column, measure, ours, theirs))
    return cells


def agreements(table: Table, cells: Iterable[Cell]) -> list[Agreement]:
    """For each column and measure, on how many pairs of methods we and the paper agree."""
    means = {(cell.method, cell.column, cell.metric): cell.mean for cell in cells}
    found = []
    for column in table.columns:
        for measure in table.measures:
            both = [
                (ours, published.mean)
                for method in table.methods
                if (ours := means[method, column, measure.name]) is not None
                and (published := table.published.get((method, column, measure.name)))
            ]
            pairs = [pair for pair in itertools.combinations(both, 2) if pair[0][1] != pair[1][1]]
            agreeing = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)
            if pairs:
                found.append(Agreement(column, measure.name, agreeing, len(pairs)))
    return found


def _cell(
    table: Table,
    row: TableRow,
    column: str,
    measure: Measure,
    ours: Mapping[Pair, float],
    theirs: Mapping[Pair, float],
) -> Cell:
    published, published_gain = table.published.get((row.method, column, measure.name)), None
    if table.relative:
        published, published_gain = None, _published_gain(table, row, column, measure)
    value = sd = gain = interval = None
    numbers = list(ours.values())
    if numbers and measure.over_runs == "mean":
        value, sd = mean(numbers), standard_deviation(numbers, table.spread)
        better, worse = (ours, theirs) if measure.definition.higher_is_better else (theirs, ours)
        if paired := paired_difference(better, worse):
            gain, interval = paired.mean, paired.interval
    elif numbers:
        value = min(numbers) if measure.over_runs == "min" else max(numbers)
    return Cell(
        row.method,
        column,
        measure.name,
        value,
        sd,
        len(numbers),
        published,
        paired_gain=gain,
        ci95=interval,
        published_gain=published_gain,
    )


def _published_gain(table: Table, row: TableRow, column: str, measure: Measure) -> float | None:
    """Improvement over the baseline in the paper, positive is better; of means only."""
    if row.baseline is None or measure.over_runs != "mean":
        return None
    ours = table.published.get((row.method, column, measure.name))
    theirs = table.published.get((row.baseline, column, measure.name))
    if ours is None or theirs is None:
        return None
    gain = ours.mean - theirs.mean
    return gain if measure.definition.higher_is_better else -gain
