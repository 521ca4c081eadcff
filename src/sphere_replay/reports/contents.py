"""A comparison as plain data for the page of a report: numbers, texts and lists, nothing else."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from sphere_replay.errors import UserError
from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.courses import Matrix, aligned, matrix_of, mean_matrix
from sphere_replay.reports.figure_parts import by_place, run_curve
from sphere_replay.reports.publishing import to_csv, to_latex
from sphere_replay.reports.render import notes, to_markdown
from sphere_replay.reports.sources import Comparison
from sphere_replay.reports.tables import Cell, fill, mean_passes
from sphere_replay.runs.domains import domain, resolve, saved_config
from sphere_replay.runs.log import read_log
from sphere_replay.runs.metrics import METRICS
from sphere_replay.runs.settings import merged
from sphere_replay.runs.table import SMALL_ENDING, Measure, Table

_POINTS = 160
"""Of a curve, at most: a screen shows no more."""
_LONGEST_PAUSE = 600.0
"""Seconds between two lines of a log; more, and the run was stopped in between."""

Content = dict[str, Any]


def content_of(comparison: Comparison) -> Content:
    """Everything that the page shows of a comparison."""
    table, runs = comparison.table, comparison.runs
    shown = fill(table, runs)
    points = 100 / table.unit.scale  # the page speaks of percent, whatever the table does
    full = replace(table, measures=_measures(table, runs))
    return {
        "name": table.name,
        "title": table.title,
        "origin": comparison.origin,
        "runs": len(runs),
        "seeds": max(cell.seeds for cell in shown),
        "measures": [_measure(measure) for measure in full.measures],
        "own_measures": len(table.measures),
        "measure": _leading(table, shown),
        "methods": [
            {"name": row.method, "baseline": row.baseline}
            for row in table.rows
            if any(run.method == row.method for run in runs)
        ],
        "columns": [name for name in table.columns if any(run.column == name for run in runs)],
        "cells": [_cell(cell, points) for cell in fill(full, runs) if cell.seeds],
        "notes": notes(table, shown),
        "passes": {name: vars(passes) for name, passes in mean_passes(runs).items()},
        "seconds": _seconds(comparison),
        "curves": _curves(runs),
        "matrices": _matrices(runs, lambda run: matrix_of(run.results)),
        "replayed_tasks": _matrices(runs, _replayed_tasks),
        "replay": _replay(runs),
        "settings": _settings(comparison),
        "commands": _commands(comparison),
        "files": {
            "LaTeX": to_latex(table, shown),
            "Markdown": to_markdown(table, shown),
            "CSV": to_csv(shown),
        },
    }


def _measures(table: Table, runs: Sequence[FinishedRun]) -> tuple[Measure, ...]:
    """The table's own measures, then all others that its runs have."""
    measured = set().union(*(run.results["metrics"] for run in runs))
    known = {measure.name for measure in table.measures}
    others = [Measure(name) for name in METRICS if name in measured and name not in known]
    return (*table.measures, *others)


def _leading(table: Table, cells: Sequence[Cell]) -> str:
    """The first of the table's measures that has gains; that has values, if none has."""
    names = [measure.name for measure in table.measures]
    gained = [cell.metric for cell in cells if cell.paired_gain is not None]
    valued = [cell.metric for cell in cells if cell.mean is not None]
    return next(name for found in (gained, valued, names) for name in names if name in found)


def _measure(measure: Measure) -> Content:
    metric = measure.definition
    return {
        "name": measure.name,
        "title": measure.title,
        "formula": metric.formula,
        "higher": metric.higher_is_better,
    }


def _cell(cell: Cell, points: float) -> Content:
    def shown(value: float | None) -> float | None:
        return None if value is None else round(points * value, 4)

    published = cell.published
    return {
        "method": cell.method,
        "column": cell.column,
        "metric": cell.metric,
        "mean": shown(cell.mean),
        "sd": shown(cell.sd),
        "seeds": cell.seeds,
        "gain": shown(cell.paired_gain),
        "ci": cell.ci95 and [shown(end) for end in cell.ci95],
        "published": published and [shown(published.mean), shown(published.sd)],
        "published_gain": shown(cell.published_gain),
    }


def _curves(runs: Sequence[FinishedRun]) -> Content:
    """By column: where tasks end, and mean and spread of each method over its seeds."""
    import numpy as np

    shown: Content = {}
    for column, methods in by_place(runs, run_curve).items():
        lengths = {len(curve.ends) for curves in methods.values() for curve in curves}
        if len(lengths) > 1:  # other streams: their curves cannot be averaged
            continue
        ends = np.mean([curve.ends for curves in methods.values() for curve in curves], axis=0)
        lines = {}
        for method, curves in methods.items():
            steps, values = aligned(curves, ends)
            chosen = np.unique(np.linspace(0, len(steps) - 1, _POINTS).round().astype(int))
            lines[method] = {
                "x": steps[chosen].round(1).tolist(),
                "mean": values.mean(0)[chosen].round(2).tolist(),
                "sd": values.std(0)[chosen].round(2).tolist(),
                "seeds": len(curves),
            }
        shown[column] = {"ends": ends.round(1).tolist(), "lines": lines}
    return shown


def _replayed_tasks(run: FinishedRun) -> Matrix | None:
    """Shares of the replay by task, while each task was learned; not every domain counts them."""
    found: Matrix | None = (run.results.get("replay") or {}).get("share_of_tasks")
    return found if found and any(share is not None for row in found for share in row) else None


def _matrices(
    runs: Sequence[FinishedRun], extract: Callable[[FinishedRun], Matrix | None]
) -> Content:
    """By column and method the mean matrix over seeds, in percent."""
    shown: Content = {}
    for column, methods in by_place(runs, extract).items():
        for method, matrices in methods.items():
            if len({(len(m), len(m[0])) for m in matrices}) == 1:
                rows = [
                    [None if x is None else round(100 * x, 1) for x in row]
                    for row in mean_matrix(matrices)
                ]
                shown.setdefault(column, {})[method] = rows
    return shown


def _replay(runs: Sequence[FinishedRun]) -> Content:
    """Means over seeds of what replay was spent on."""
    shown: Content = {}
    for column, methods in by_place(runs, lambda run: run.results.get("replay")).items():
        for method, entries in methods.items():
            means = {}
            for name in dict.fromkeys(name for entry in entries for name in entry):
                found = [entry.get(name) for entry in entries]
                known = [number for number in found if isinstance(number, int | float)]
                if known:
                    means[name] = round(sum(known) / len(known), 4)
            shown.setdefault(column, {})[method] = means
    return shown


def _seconds(comparison: Comparison) -> dict[str, float]:
    """Mean seconds of a method's runs by the clock of their logs, without pauses."""
    found: dict[str, list[float]] = {}
    for run, folder in zip(comparison.runs, comparison.folders, strict=False):
        if seconds := _seconds_of(folder / "log.jsonl"):
            found.setdefault(run.method, []).append(seconds)
    return {name: round(sum(each) / len(each), 2) for name, each in found.items()}


def _seconds_of(log: Path) -> float:
    if not log.is_file():
        return 0.0
    clock = [line["time"]["unix"] for line in read_log(log)]
    gaps = [after - before for before, after in pairwise(clock)]
    return float(sum(gap for gap in gaps if 0 < gap < _LONGEST_PAUSE))


def _settings(comparison: Comparison) -> list[Content]:
    """Every setting: one value, or one for each method, and where it is not the paper's."""
    described = _described(comparison)
    names = dict.fromkeys(name for config, _ in described.values() for name in config)
    shown = []
    for name in names:
        if name in ("constants", "seed", "noise", "order"):
            continue
        values = {method: _text(config.get(name)) for method, (config, _) in described.items()}
        found = [notes.get(name, "") for _, notes in described.values()]
        alike = len(set(values.values())) == 1
        shown.append(
            {
                "name": name,
                "value": next(iter(values.values())) if alike else None,
                "values": None if alike else values,
                "note": "; ".join(dict.fromkeys(filter(None, found))),
            }
        )
    return shown


def _described(comparison: Comparison) -> dict[str, tuple[Mapping[str, Any], dict[str, str]]]:
    """A configuration of each method, with notes on what is not the paper's."""
    if comparison.configs:
        return {name: (saved, _notes_on(saved)) for name, saved in comparison.configs.items()}
    table = comparison.table
    methods = {run.method for run in comparison.runs}
    found: dict[str, tuple[Mapping[str, Any], dict[str, str]]] = {}
    for row in table.rows:
        if row.method not in methods:
            continue
        given = merged(table.settings, row.settings, comparison.settings)
        try:
            config = resolve(table.preset, host=row.host, select=row.select, **given)
        except UserError:  # a preset or setting of another version: the numbers stand without it
            continue
        provenance = domain(config.DOMAIN).provenance
        saved = config.to_dict()
        found[row.method] = (saved, {name: provenance(config, name) for name in saved})
    return found


def _notes_on(saved: Mapping[str, Any]) -> dict[str, str]:
    """What is known of a saved configuration's settings; nothing of one of another version."""
    try:
        config = saved_config(saved)
    except UserError:
        return {}
    provenance = domain(config.DOMAIN).provenance
    return {name: provenance(config, name) for name in saved}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _commands(comparison: Comparison) -> dict[str, str]:
    """The command that makes the runs, and those that show them elsewhere."""
    commands = {"runs": comparison.command}
    if comparison.configs:
        return commands | {"report": f"sphere report {comparison.origin} --out report.html"}
    if comparison.folders:  # an experiment's file
        runs = comparison.folders[0].parent
        show = f"sphere table {comparison.origin} --runs {runs}"
        commands["report"] = f"sphere report {comparison.origin} --runs {runs} --out report.html"
        return commands | {"gains": f"{show} --forest gains.pdf", "table": f"{show} --latex"}
    name = comparison.table.name
    show = f"sphere table {name.removesuffix(SMALL_ENDING)}"
    if name.endswith(SMALL_ENDING):
        show += " --small"
    return commands | {
        "gains": f"{show} --forest gains.pdf",
        "table": f"{show} --latex",
        "costs": f"{show} --costs",
        "report": f"sphere report {comparison.origin} --out report.html",
    }
