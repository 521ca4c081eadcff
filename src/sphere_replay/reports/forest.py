"""A forest plot: paired gains with their intervals, the unit of evidence of every comparison."""

from collections.abc import Sequence
from pathlib import Path

from sphere_replay.errors import UsageError
from sphere_replay.reports.figure_parts import GRAY, HUES, new_figure, save
from sphere_replay.reports.render import gain_text
from sphere_replay.reports.tables import Cell
from sphere_replay.runs.table import Table

_LINE = 0.34
"""Inches of height for each gain."""
_LOSES, _OPEN, _GAINS = HUES[1], GRAY, HUES[0]


def draw_forest(table: Table, cells: Sequence[Cell], path: Path) -> Path:
    """A line for every paired gain of the table's first measure that has any, column by column.

    Blue intervals lie above zero, orange ones below; gray ones do not tell.
    """
    known = {cell.metric for cell in cells if cell.ci95 is not None}
    metric = next((each for each in table.measures if each.name in known), table.measures[0])
    gains = [cell for cell in cells if cell.metric == metric.name and cell.ci95 is not None]
    if not gains:
        raise UsageError(
            f"table {table.name} has no paired gain with an interval to draw: at least two common "
            "seeds of a method and its baseline are needed"
        )
    baselines = {row.method: row.baseline for row in table.rows}
    blocks = [(name, [c for c in gains if c.column == name]) for name in table.columns]
    blocks = [(name, block) for name, block in blocks if block]
    height = 1.1 + _LINE * (len(gains) + len(blocks))
    figure = new_figure(8, height)
    axes = figure.subplots()
    axes.axvline(0, color="0.7", linewidth=1)
    place, labels = 0, []
    for name, block in blocks:
        labels.append((place, name, "bold"))
        place += 1
        for cell in block:
            assert cell.ci95 is not None  # chosen above
            assert cell.paired_gain is not None
            low, high = cell.ci95
            color = _GAINS if low > 0 else _LOSES if high < 0 else _OPEN
            axes.plot([low, high], [place, place], color=color, linewidth=2.5)
            axes.plot([cell.paired_gain], [place], "o", color=color)
            text = gain_text(cell.paired_gain, cell.ci95, 1)
            axes.annotate(
                text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=9
            )
            labels.append((place, f"{cell.method} over {baselines[cell.method]}", "normal"))
            place += 1
    axes.set_yticks([spot for spot, _, _ in labels], [text for _, text, _ in labels])
    for tick, (_, _, weight) in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_fontweight(weight)
    axes.set_ylim(place - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    seeds = sorted({cell.seeds for cell in gains})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    axes.set_xlabel(
        f"paired gain in {metric.definition.title} (points), 95% interval, {count} seeds"
    )
    axes.set_title(table.title, loc="left", fontsize=11)
    return save(figure, path)
