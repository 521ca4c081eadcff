"""A small comparison told in plain words, whichever way its numbers fall."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sphere_replay.reports.catalog import Table
from sphere_replay.reports.collection import Cell, as_results, collect
from sphere_replay.reports.figures import (
    RunSummary,
    plot_accuracy_over_stream,
    plot_forgetting,
    plot_noisy_lift,
)
from sphere_replay.reports.reward_figure import plot_reward
from sphere_replay.reports.statistics import mean
from sphere_replay.reports.tables import Row, build_rows
from sphere_replay.runs.launch import run_folder


def narrowed(table: Table, methods: Sequence[str], columns: Sequence[str]) -> Table:
    """The part of a table with the given rows and columns, in the given order."""
    rows = {row.method: row for row in table.rows}
    spec = replace(
        table.spec,
        methods={method: table.spec.methods[method] for method in methods},
        columns=tuple(columns),
        published={
            key: value
            for key, value in table.spec.published.items()
            if key[0] in methods and key[1] in columns
        },
    )
    return replace(
        table,
        spec=spec,
        rows=tuple(rows[method] for method in methods),
        columns={column: table.columns[column] for column in columns},
    )


def tell(table: Table, cells: Sequence[Cell], out: Path) -> tuple[list[Row], str]:
    """The cells of the table, and a paragraph on what they show."""
    runs = collect(cells, out)
    rows = build_rows(table.spec, as_results(runs))
    sentences = []
    for row in rows:
        if row.paired_gain is None or row.ci95 is None:
            continue
        low, high = row.ci95
        verdict = (
            "better" if low > 0 else "worse" if high < 0 else "not distinguishable from it here"
        )
        baseline = table.spec.methods[row.method]
        sentences.append(
            f"{row.method} against {baseline} at {row.column} noise: {row.paired_gain:+.1f} points "
            f"over {row.seeds} paired seeds, 95% interval [{low:+.1f}, {high:+.1f}]: {verdict}."
        )
    for method in table.spec.methods:
        lifts = [run["replay"].get("noisy_lift") for run in runs if run["method"] == method]
        known = [lift for lift in lifts if lift is not None]
        if known:
            sentences.append(
                f"{method} spends {mean(known):.2f} times a fair share of its replay on "
                "mislabelled memories."
            )
    return rows, " ".join(sentences)


def summaries(cells: Sequence[Cell], out: Path) -> list[RunSummary]:
    """The finished runs among the cells, as the figures take them."""
    return [
        RunSummary(cell.method, cell.column, cell.config.pair, run_folder(cell.config, out).results)
        for cell in cells
        if run_folder(cell.config, out).finished
    ]


def draw_comparison(cells: Sequence[Cell], out: Path, pictures: Path) -> list[Path]:
    """The figures of the finished runs, as files: noisy lift or rewards where there are any."""
    runs = summaries(cells, out)
    pictures.mkdir(parents=True, exist_ok=True)
    drawn = [
        plot_accuracy_over_stream(runs, pictures / "accuracy-over-stream.png"),
        plot_forgetting(runs, pictures / "forgetting.png"),
    ]
    if any("noisy_lift" in run.results["replay"] for run in runs):
        drawn.append(plot_noisy_lift(runs, pictures / "noisy-lift.png"))
    if any("reward" in run.results for run in runs):
        drawn.append(plot_reward(runs, pictures / "reward-and-accuracy.png"))
    return drawn
