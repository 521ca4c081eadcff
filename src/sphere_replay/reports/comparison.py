"""A small comparison told in plain words, whichever way its numbers fall."""

from collections.abc import Sequence
from pathlib import Path

from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.figure_parts import save
from sphere_replay.reports.figures import (
    accuracy_figure,
    forgetting_figure,
    lift_figure,
    reward_figure,
)
from sphere_replay.reports.statistics import mean
from sphere_replay.reports.tables import fill
from sphere_replay.runs.table import Table


def tell(table: Table, runs: Sequence[FinishedRun]) -> str:
    """A paragraph on what the runs of a table show, by its first measure."""
    metric = table.measures[0]
    baselines = {row.method: row.baseline for row in table.rows}
    sentences = []
    for cell in fill(table, runs):
        if cell.metric != metric.name or cell.paired_gain is None or cell.ci95 is None:
            continue
        low, high = cell.ci95
        verdict = (
            "better" if low > 0 else "worse" if high < 0 else "not distinguishable from it here"
        )
        sentences.append(
            f"{cell.method} against {baselines[cell.method]} at {cell.column} noise: "
            f"{cell.paired_gain:+.1f} points of {metric.definition.title.lower()} over "
            f"{cell.seeds} paired seeds, 95% interval [{low:+.1f}, {high:+.1f}]: {verdict}."
        )
    for method in table.methods:
        lifts = [run.results["replay"].get("noisy_lift") for run in runs if run.method == method]
        known = [lift for lift in lifts if lift is not None]
        if known:
            sentences.append(
                f"{method} spends {mean(known):.2f} times a fair share of its replay on "
                "mislabelled memories."
            )
    return " ".join(sentences)


def draw_comparison(
    runs: Sequence[FinishedRun], pictures: Path, *, kind: str = "png", subject: str = ""
) -> list[Path]:
    """The figures of finished runs, as files: noisy lift or rewards where there are any.

    Args:
        runs: What is drawn.
        pictures: Folder of the files.
        kind: `png`, `svg` or `pdf`.
        subject: What the runs learn, for the titles.
    """
    figures = {"accuracy-over-stream": accuracy_figure, "forgetting": forgetting_figure}
    if any(run.results["replay"].get("noisy_lift") is not None for run in runs):
        figures["noisy-lift"] = lift_figure
    if any("reward" in run.results for run in runs):
        figures["reward-and-accuracy"] = reward_figure
    return [
        save(draw(runs, subject), pictures / f"{name}.{kind}") for name, draw in figures.items()
    ]
