"""A table as text, Markdown, a rich table or JSON, with its definitions underneath."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sphere_replay.reports.tables import Cell, Passes, agreements
from sphere_replay.runs.table import Table, Unit

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MethodPasses = Mapping[str, Passes]
"""Passes by method; shown where there are any."""
NO_PASSES: MethodPasses = {}
Grid = list[list[list[str]]]
"""Lines of text by row and column; the first row is the heading."""


def to_json(
    table: Table, cells: Sequence[Cell], passes: MethodPasses = NO_PASSES
) -> dict[str, Any]:
    """The table for programs: one row a cell, numbers unrounded."""
    shown: dict[str, Any] = {
        "table": table.name,
        "rows": [cell.to_dict() for cell in cells],
        "notes": notes(table, cells, passes),
    }
    if table.relative:
        shown["orders"] = [asdict(agreement) for agreement in agreements(table, cells)]
    if passes:
        shown["passes"] = {method: asdict(counted) for method, counted in passes.items()}
    return shown


def to_text(table: Table, cells: Sequence[Cell], passes: MethodPasses = NO_PASSES) -> str:
    """The table in plain, aligned text."""
    grid = _grid(table, cells, passes)
    columns = range(len(grid[0]))
    widths = [max(len(line) for row in grid for line in row[i]) for i in columns]
    rule = "  ".join("-" * width for width in widths)
    lines = [table.title, ""]
    for index, row in enumerate(grid):
        for depth in range(max(len(texts) for texts in row)):
            parts = [texts[depth] if depth < len(texts) else "" for texts in row]
            padded = [part.ljust(width) for part, width in zip(parts, widths, strict=True)]
            lines.append("  ".join(padded).rstrip())
        if index == 0:
            lines.append(rule)
    return "\n".join([*lines, "", *notes(table, cells, passes)]) + "\n"


def to_markdown(table: Table, cells: Sequence[Cell], passes: MethodPasses = NO_PASSES) -> str:
    """The table for a Markdown document."""
    heading, *body = [
        ["<br>".join(line.replace("|", "\\|") for line in texts) for texts in row]
        for row in _grid(table, cells, passes)
    ]
    alignment = ["---", *["---:"] * (len(heading) - 1)]
    lines = ["| " + " | ".join(row) + " |" for row in (heading, alignment, *body)]
    remarks = [f"- {note}" for note in notes(table, cells, passes)]
    return "\n".join([f"**{table.title}**", "", *lines, "", *remarks]) + "\n"


def to_brief(table: Table, cells: Sequence[Cell]) -> str:
    """The first measure alone, with paired gains, for a document that says the rest."""
    measure = table.measures[0]
    found = {(c.method, c.column): c for c in cells if c.metric == measure.name}
    methods, columns = shown_places(table, list(found.values()))
    rows = [["Method", *columns], ["---", *["---:"] * len(columns)]]
    for method in methods:
        texts = [_brief_text(found[method, column], table.unit) for column in columns]
        rows.append([method.replace("|", "\\|"), *texts])
    counts = _counts(list(found.values()))
    seeds = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    note = f"{measure.title}, mean over n = {seeds} seeds"
    baselines = dict.fromkeys(row.baseline for row in table.rows if row.method in methods)
    if others := [name for name in baselines if name]:
        over = " or ".join(others) if len(others) <= 2 else "the row of its host"
        note += f"; in parentheses the paired gain over {over} with its 95% interval"
    return "\n".join([*("| " + " | ".join(row) + " |" for row in rows), "", note + "."]) + "\n"


def to_rich(table: Table, cells: Sequence[Cell], passes: MethodPasses = NO_PASSES) -> "RichTable":
    """The table for a terminal; needs rich, which the `report` extra brings."""
    from rich.table import Table as RichTable
    from rich.text import Text

    heading, *body = _grid(table, cells, passes)
    caption = Text("\n".join(notes(table, cells, passes)))
    shown = RichTable(title=Text(table.title), caption=caption)
    shown.caption_justify = "left"
    for index, texts in enumerate(heading):
        # Text, not str: brackets of an interval are no markup.
        shown.add_column(Text("\n".join(texts)), justify="right" if index else "left")
    for row in body:
        shown.add_row(*[Text("\n".join(texts)) for texts in row])
    return shown


def notes(table: Table, cells: Sequence[Cell], passes: MethodPasses = NO_PASSES) -> list[str]:
    """What the numbers are: formula of each metric, kind of SD, gain, origin, number of seeds."""
    lines = []
    for measure in table.measures:
        over = "" if measure.over_runs == "mean" else f"; the {measure.over_runs} over runs, no SD"
        lines.append(f"{measure.title}: {measure.definition.formula}{over}.")
    shown = "in percent" if table.unit is Unit.PERCENT else "as fractions"
    lines.append(f"Values are mean ± SD over seeds, {shown}; SD: {table.spread.formula}.")
    if any(cell.paired_gain is not None for cell in cells):
        against = ", ".join(f"{row.method} - {row.baseline}" for row in table.rows if row.baseline)
        lines.append(
            "gain: mean paired improvement over the baseline on common seeds, positive is better "
            f"({against}); in brackets its 95% confidence interval, Student's t."
        )
    if any(cell.published for cell in cells):
        lines.append("paper: the published value.")
    if table.relative:
        lines.append(
            "These runs are smaller than the paper's, so no value stands beside a published one. "
            "paper's gain: the difference between the published means."
        )
        lines += _orders(table, cells)
    if passes:
        lines.append(
            "Passes: images or sequences through the network per stream example, over the whole "
            "run: forward + backward, and how many of the forward ones only score memories."
        )
    lines += _absences(table, cells)
    counts = _counts(cells)
    if len(counts) == 1:
        lines.append(f"n = {counts.pop()} in every filled cell.")
    return lines


def value_text(mean: float | None, sd: float | None, digits: int) -> str:
    """A mean with its standard deviation, if it has one."""
    if mean is None:
        return "--"
    return f"{mean:.{digits}f}" + ("" if sd is None else f" ± {sd:.{digits}f}")


def gain_text(gain: float, ci95: tuple[float, float] | None, digits: int) -> str:
    """A paired gain with its interval, if it has one."""
    interval = "" if ci95 is None else f" [{ci95[0]:+.{digits}f}, {ci95[1]:+.{digits}f}]"
    return f"{gain:+.{digits}f}{interval}"


def _orders(table: Table, cells: Sequence[Cell]) -> list[str]:
    """A line for each column on how many pairs of its methods are ordered as in the paper."""
    titles = {measure.name: measure.title for measure in table.measures}
    columns: dict[str, list[str]] = {}
    for each in agreements(table, cells):
        share = f"{each.agreeing} of {each.pairs} by {titles[each.metric]}"
        columns.setdefault(each.column, []).append(share)
    return [
        f"{column}, pairs of methods in the paper's order: {', '.join(shares)}."
        for column, shares in columns.items()
    ]


def _counts(cells: Sequence[Cell]) -> set[int]:
    return {cell.seeds for cell in cells if cell.seeds}


def shown_places(table: Table, cells: Sequence[Cell]) -> tuple[list[str], list[str]]:
    """Methods and columns that some run has filled; all, if there is none."""

    def filled(names: Iterable[str], found: set[str]) -> list[str]:
        return [name for name in names if name in found or not found]

    return (
        filled(table.methods, {cell.method for cell in cells if cell.seeds}),
        filled(table.columns, {cell.column for cell in cells if cell.seeds}),
    )


def _absences(table: Table, cells: Sequence[Cell]) -> list[str]:
    """What is not shown."""
    methods, columns = shown_places(table, cells)
    absent = {
        "Rows": [name for name in table.methods if name not in methods],
        "Columns": [name for name in table.columns if name not in columns],
    }
    return [f"{kind} without runs: {', '.join(names)}." for kind, names in absent.items() if names]


def _grid(table: Table, cells: Sequence[Cell], passes: MethodPasses) -> Grid:
    found = {(cell.method, cell.column, cell.metric): cell for cell in cells}
    uneven = len(_counts(cells)) > 1
    methods, columns = shown_places(table, cells)
    grid: Grid = [[["Method"]]]
    for column in columns:
        for measure in table.measures:
            # One heading where one says it all, two where both vary.
            both = len(table.columns) > 1 and len(table.measures) > 1
            single = column if len(table.measures) == 1 else measure.title
            grid[0].append([column, measure.title] if both else [single])
    for method in methods:
        row = [[method]]
        for column in columns:
            for measure in table.measures:
                row.append(_cell_texts(found[method, column, measure.name], table.unit, uneven))
        grid.append(row)
    if passes:
        grid[0].append(["Passes"])
        for row, method in zip(grid[1:], methods, strict=True):
            row.append(_passes_texts(passes[method]) if method in passes else ["--"])
    return grid


def _cell_texts(cell: Cell, unit: Unit, show_count: bool) -> list[str]:
    digits = 1 if unit is Unit.PERCENT else 3
    lines = [value_text(cell.mean, cell.sd, digits)]
    if show_count and cell.seeds:
        lines[0] += f" (n={cell.seeds})"
    if cell.published:
        lines.append(f"paper {value_text(cell.published.mean, cell.published.sd, digits)}")
    if cell.paired_gain is not None:
        lines.append(f"gain {gain_text(cell.paired_gain, cell.ci95, digits)}")
    if cell.published_gain is not None:
        lines.append(f"paper's gain {cell.published_gain:+.{digits}f}")
    return lines


def _brief_text(cell: Cell, unit: Unit) -> str:
    digits = 1 if unit is Unit.PERCENT else 3
    text = value_text(cell.mean, None, digits)
    if cell.paired_gain is None:
        return text
    return f"{text} ({gain_text(cell.paired_gain, cell.ci95, digits)})"


def _passes_texts(passes: Passes) -> list[str]:
    lines = [f"{passes.forward:.1f} + {passes.backward:.1f}"]
    return [*lines, f"{passes.scored:.1f} scored"] if passes.scored else lines
