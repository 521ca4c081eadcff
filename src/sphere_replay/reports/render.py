"""A table as text, Markdown, a rich table or JSON, with its definitions underneath."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sphere_replay.reports.tables import Passes, Row, TableSpec, Unit, agreements

if TYPE_CHECKING:
    from rich.table import Table

Costs = Mapping[str, Passes]
"""Passes by method; shown where there are any."""
NO_COSTS: Costs = {}
Grid = list[list[list[str]]]
"""Lines of text by row and column; the first row is the heading."""


def to_json(spec: TableSpec, rows: Sequence[Row], costs: Costs = NO_COSTS) -> dict[str, Any]:
    """The table for programs: one row a cell, numbers unrounded."""
    table: dict[str, Any] = {
        "table": spec.name,
        "rows": [row.to_dict() for row in rows],
        "notes": notes(spec, rows, costs),
    }
    if spec.relative:
        table["orders"] = [asdict(agreement) for agreement in agreements(spec, rows)]
    if costs:
        table["passes"] = {method: asdict(passes) for method, passes in costs.items()}
    return table


def to_text(spec: TableSpec, rows: Sequence[Row], costs: Costs = NO_COSTS) -> str:
    """The table in plain, aligned text."""
    grid = _grid(spec, rows, costs)
    columns = range(len(grid[0]))
    widths = [max(len(line) for cells in grid for line in cells[i]) for i in columns]
    rule = "  ".join("-" * width for width in widths)
    lines = [spec.title, ""]
    for index, cells in enumerate(grid):
        for depth in range(max(len(cell) for cell in cells)):
            parts = [cell[depth] if depth < len(cell) else "" for cell in cells]
            padded = [part.ljust(width) for part, width in zip(parts, widths, strict=True)]
            lines.append("  ".join(padded).rstrip())
        if index == 0:
            lines.append(rule)
    return "\n".join([*lines, "", *notes(spec, rows, costs)]) + "\n"


def to_markdown(spec: TableSpec, rows: Sequence[Row], costs: Costs = NO_COSTS) -> str:
    """The table for a Markdown document."""
    heading, *body = [
        ["<br>".join(line.replace("|", "\\|") for line in cell) for cell in cells]
        for cells in _grid(spec, rows, costs)
    ]
    alignment = ["---", *["---:"] * (len(heading) - 1)]
    table = ["| " + " | ".join(cells) + " |" for cells in (heading, alignment, *body)]
    remarks = [f"- {note}" for note in notes(spec, rows, costs)]
    return "\n".join([f"**{spec.title}**", "", *table, "", *remarks]) + "\n"


def to_rich(spec: TableSpec, rows: Sequence[Row], costs: Costs = NO_COSTS) -> "Table":
    """The table for a terminal; needs rich, which the `report` extra brings."""
    from rich.table import Table
    from rich.text import Text

    heading, *body = _grid(spec, rows, costs)
    table = Table(title=Text(spec.title), caption=Text("\n".join(notes(spec, rows, costs))))
    table.caption_justify = "left"
    for index, cell in enumerate(heading):
        # Text, not str: brackets of an interval are no markup.
        table.add_column(Text("\n".join(cell)), justify="right" if index else "left")
    for cells in body:
        table.add_row(*[Text("\n".join(cell)) for cell in cells])
    return table


def notes(spec: TableSpec, rows: Sequence[Row], costs: Costs = NO_COSTS) -> list[str]:
    """What the numbers are: formula of each metric, kind of SD, gain, origin, number of seeds."""
    lines = []
    for measure in spec.measures:
        over = "" if measure.over_runs == "mean" else f"; the {measure.over_runs} over runs, no SD"
        lines.append(f"{measure.title}: {measure.definition.formula}{over}.")
    shown = "in percent" if spec.unit is Unit.PERCENT else "as fractions"
    lines.append(f"Values are mean ± SD over seeds, {shown}; SD: {spec.spread.formula}.")
    if any(row.paired_gain is not None for row in rows):
        against = ", ".join(f"{ours} - {base}" for ours, base in spec.methods.items() if base)
        lines.append(
            "gain: mean paired improvement over the baseline on common seeds, positive is better "
            f"({against}); in brackets its 95% confidence interval, Student's t."
        )
    if any(row.published for row in rows):
        lines.append("paper: the published value.")
    if spec.relative:
        lines.append(
            "These runs are smaller than the paper's, so no value stands beside a published one. "
            "paper's gain: the difference between the published means."
        )
        lines += _orders(spec, rows)
    if costs:
        lines.append(
            "Passes: images or sequences through the network per stream example, over the whole "
            "run: forward + backward, and how many of the forward ones only score memories."
        )
    lines += _absences(spec, rows)
    counts = _counts(rows)
    if len(counts) == 1:
        lines.append(f"n = {counts.pop()} in every filled cell.")
    return lines


def _orders(spec: TableSpec, rows: Sequence[Row]) -> list[str]:
    """A line for each column on how many pairs of its methods are ordered as in the paper."""
    titles = {measure.name: measure.title for measure in spec.measures}
    columns: dict[str, list[str]] = {}
    for each in agreements(spec, rows):
        share = f"{each.agreeing} of {each.pairs} by {titles[each.metric]}"
        columns.setdefault(each.column, []).append(share)
    return [
        f"{column}, pairs of methods in the paper's order: {', '.join(shares)}."
        for column, shares in columns.items()
    ]


def _counts(rows: Sequence[Row]) -> set[int]:
    return {row.seeds for row in rows if row.seeds}


def _filled(names: Iterable[str], filled: set[str]) -> list[str]:
    """Methods or columns that some run has filled; all, if there is none."""
    return [name for name in names if name in filled or not filled]


def _shown(spec: TableSpec, rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Methods and columns with runs."""
    filled = [row for row in rows if row.seeds]
    return (
        _filled(spec.methods, {row.method for row in filled}),
        _filled(spec.columns, {row.column for row in filled}),
    )


def _absences(spec: TableSpec, rows: Sequence[Row]) -> list[str]:
    """What is not shown."""
    methods, columns = _shown(spec, rows)
    absent = {
        "Rows": [name for name in spec.methods if name not in methods],
        "Columns": [name for name in spec.columns if name not in columns],
    }
    return [f"{kind} without runs: {', '.join(names)}." for kind, names in absent.items() if names]


def _grid(spec: TableSpec, rows: Sequence[Row], costs: Costs) -> Grid:
    cells = {(row.method, row.column, row.metric): row for row in rows}
    uneven = len(_counts(rows)) > 1
    methods, columns = _shown(spec, rows)
    grid: Grid = [[["Method"]]]
    for column in columns:
        for measure in spec.measures:
            # One heading where one says it all, two where both vary.
            both = len(spec.columns) > 1 and len(spec.measures) > 1
            single = column if len(spec.measures) == 1 else measure.title
            grid[0].append([column, measure.title] if both else [single])
    for method in methods:
        line = [[method]]
        for column in columns:
            for measure in spec.measures:
                line.append(_cell(cells[method, column, measure.name], spec.unit, uneven))
        grid.append(line)
    if costs:
        grid[0].append(["Passes"])
        for line, method in zip(grid[1:], methods, strict=True):
            line.append(_passes(costs[method]) if method in costs else ["--"])
    return grid


def _cell(row: Row, unit: Unit, show_count: bool) -> list[str]:
    digits = 1 if unit is Unit.PERCENT else 3
    lines = [_value(row.mean, row.sd, digits)]
    if show_count and row.seeds:
        lines[0] += f" (n={row.seeds})"
    if row.published:
        lines.append(f"paper {_value(row.published.mean, row.published.sd, digits)}")
    if row.paired_gain is not None:
        gain = f"gain {row.paired_gain:+.{digits}f}"
        if row.ci95 is not None:
            gain += f" [{row.ci95[0]:+.{digits}f}, {row.ci95[1]:+.{digits}f}]"
        lines.append(gain)
    if row.published_gain is not None:
        lines.append(f"paper's gain {row.published_gain:+.{digits}f}")
    return lines


def _passes(passes: Passes) -> list[str]:
    lines = [f"{passes.forward:.1f} + {passes.backward:.1f}"]
    return [*lines, f"{passes.scored:.1f} scored"] if passes.scored else lines


def _value(mean: float | None, sd: float | None, digits: int) -> str:
    if mean is None:
        return "--"
    return f"{mean:.{digits}f}" + ("" if sd is None else f" ± {sd:.{digits}f}")
