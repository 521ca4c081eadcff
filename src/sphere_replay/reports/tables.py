"""From results of single runs to the cells of a table, with what was published beside them."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from sphere_replay.reports.statistics import (
    Spread,
    mean,
    paired_difference,
    standard_deviation,
)
from sphere_replay.runs.metrics import METRICS, Metric

Seed = int | str
"""What pairs the runs of two methods; text where a run is more than a seed ("order 1, seed 3")."""


class Unit(StrEnum):
    """How accuracies, stored in [0, 1], are shown."""

    PERCENT = "percent"
    FRACTION = "fraction"

    @property
    def scale(self) -> int:
        """What a stored number is multiplied by."""
        return 100 if self is Unit.PERCENT else 1


@dataclass(frozen=True)
class Result:
    """The metrics of one finished run, as stored (in [0, 1])."""

    method: str
    column: str
    seed: Seed
    metrics: Mapping[str, float]
    costs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A value from a paper, in the unit of the table."""

    mean: float
    sd: float | None = None


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
class TableSpec:
    """A table without its numbers."""

    name: str
    title: str
    methods: Mapping[str, str | None]
    """Each method, in order, with the baseline its paired gain is taken against, if any."""
    columns: tuple[str, ...]
    measures: tuple[Measure, ...]
    spread: Spread = Spread.POPULATION
    unit: Unit = Unit.PERCENT
    published: Mapping[tuple[str, str, str], Published] = field(default_factory=dict)
    """Values by (method, column, name of the measure)."""
    relative: bool = False
    """Runs are not of the published scale: compare gains and orders with it, never values."""

    def __post_init__(self) -> None:
        for method, baseline in self.methods.items():
            if baseline is not None and baseline not in self.methods:
                raise ValueError(
                    f"table {self.name}: the baseline {baseline!r} of {method!r} is not one of its "
                    f"methods: {', '.join(self.methods)}"
                )
        cells = set(self.cells())
        for key in self.published:
            if key not in cells:
                raise ValueError(f"table {self.name}: {key} has a published value but no cell")

    def cells(self) -> list[tuple[str, str, str]]:
        """(method, column, name of the measure) of every cell, row by row."""
        return [
            (method, column, measure.name)
            for method in self.methods
            for column in self.columns
            for measure in self.measures
        ]


@dataclass(frozen=True)
class Row:
    """One cell of a table, in the table's unit; None where there is nothing to say."""

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
        """The row for JSON; it has a published gain or a published value, not both."""
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


def mean_passes(results: Iterable[Result]) -> dict[str, Passes]:
    """What each method costs, over all of its runs that counted passes."""
    counted: dict[str, list[Mapping[str, float]]] = {}
    for result in results:
        if "forward_per_example" in result.costs:
            counted.setdefault(result.method, []).append(result.costs)
    kinds = ("forward", "backward", "scored")
    return {
        method: Passes(*(mean([costs[f"{kind}_per_example"] for costs in runs]) for kind in kinds))
        for method, runs in counted.items()
    }


def build_rows(spec: TableSpec, results: Iterable[Result]) -> list[Row]:
    """One row for every cell of the table, also for those that no run has filled yet."""
    runs: dict[tuple[str, str], dict[Seed, Mapping[str, float]]] = {
        (method, column): {} for method in spec.methods for column in spec.columns
    }
    for result in results:
        place = (result.method, result.column)
        if place not in runs:
            raise ValueError(
                f"table {spec.name} has no cell for method {result.method!r} in column "
                f"{result.column!r}; methods: {', '.join(spec.methods)}; columns: "
                f"{', '.join(spec.columns)}"
            )
        if result.seed in runs[place]:
            raise ValueError(
                f"two results for {result.method!r}, {result.column!r}, seed {result.seed!r}: a "
                "run counts once"
            )
        runs[place][result.seed] = result.metrics

    def values(method: str, column: str, metric: str) -> dict[Seed, float]:
        """One metric by seed; runs that do not determine it are left out."""
        return {
            seed: spec.unit.scale * metrics[metric]
            for seed, metrics in runs[method, column].items()
            if metric in metrics
        }

    rows = []
    for method, baseline in spec.methods.items():
        for column in spec.columns:
            for measure in spec.measures:
                ours = values(method, column, measure.metric)
                theirs = values(baseline, column, measure.metric) if baseline else {}
                rows.append(_row(spec, (method, column), measure, ours, theirs))
    return rows


def agreements(spec: TableSpec, rows: Iterable[Row]) -> list[Agreement]:
    """For each column and measure, on how many pairs of methods we and the paper agree."""
    means = {(row.method, row.column, row.metric): row.mean for row in rows}
    found = []
    for column in spec.columns:
        for measure in spec.measures:
            both = [
                (ours, published.mean)
                for method in spec.methods
                if (ours := means[method, column, measure.name]) is not None
                and (published := spec.published.get((method, column, measure.name)))
            ]
            pairs = [pair for pair in itertools.combinations(both, 2) if pair[0][1] != pair[1][1]]
            agreeing = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)
            if pairs:
                found.append(Agreement(column, measure.name, agreeing, len(pairs)))
    return found


def _row(
    spec: TableSpec,
    place: tuple[str, str],
    measure: Measure,
    ours: Mapping[Seed, float],
    theirs: Mapping[Seed, float],
) -> Row:
    published, published_gain = spec.published.get((*place, measure.name)), None
    if spec.relative:
        published, published_gain = None, _published_gain(spec, place, measure)
    value = sd = gain = interval = None
    numbers = list(ours.values())
    if numbers and measure.over_runs == "mean":
        value, sd = mean(numbers), standard_deviation(numbers, spec.spread)
        better, worse = (ours, theirs) if measure.definition.higher_is_better else (theirs, ours)
        if paired := paired_difference(better, worse):
            gain, interval = paired.mean, paired.interval
    elif numbers:
        value = min(numbers) if measure.over_runs == "min" else max(numbers)
    return Row(
        *place,
        measure.name,
        value,
        sd,
        len(numbers),
        published,
        paired_gain=gain,
        ci95=interval,
        published_gain=published_gain,
    )


def _published_gain(spec: TableSpec, place: tuple[str, str], measure: Measure) -> float | None:
    """Improvement over the baseline in the paper, positive is better; of means only."""
    method, column = place
    baseline = spec.methods[method]
    if baseline is None or measure.over_runs != "mean":
        return None
    ours = spec.published.get((method, column, measure.name))
    theirs = spec.published.get((baseline, column, measure.name))
    if ours is None or theirs is None:
        return None
    gain = ours.mean - theirs.mean
    return gain if measure.definition.higher_is_better else -gain
