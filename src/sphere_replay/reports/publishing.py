"""A table for publication: LaTeX with booktabs, and comma-separated values for everything else."""

import csv
import io
from collections.abc import Sequence

from sphere_replay.reports.render import gain_text, shown_places
from sphere_replay.reports.tables import Cell
from sphere_replay.runs.table import Table, Unit

_SPECIAL = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "Σ": r"$\Sigma$",
    }
)
_COLUMNS = (
    *("method", "column", "metric", "mean", "sd", "seeds", "gain", "ci_low", "ci_high"),
    *("published_mean", "published_sd", "published_gain"),
)


def to_latex(table: Table, cells: Sequence[Cell]) -> str:
    r"""The table in booktabs style (`\usepackage{booktabs}`), the best of each column in bold.

    A second line below a method has its paired gain with the interval.
    """
    found = {(cell.method, cell.column, cell.metric): cell for cell in cells}
    methods, columns = shown_places(table, cells)
    places = [(column, measure) for column in columns for measure in table.measures]
    best = best_of(table, cells)
    lines = [
        f"% {table.title}; needs \\usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{l{'r' * len(places)}}}",
        r"\toprule",
    ]
    if len(table.measures) > 1:
        spans = [rf"\multicolumn{{{len(table.measures)}}}{{c}}{{{_escaped(c)}}}" for c in columns]
        lines.append(" & ".join(["", *spans]) + r" \\")
        lines.append(" & ".join(["Method", *(_escaped(m.title) for _, m in places)]) + r" \\")
    else:
        lines.append(" & ".join(["Method", *map(_escaped, columns)]) + r" \\")
    lines.append(r"\midrule")
    digits = 1 if table.unit is Unit.PERCENT else 3
    for method in methods:
        row = [found[method, column, measure.name] for column, measure in places]
        values = [
            _value(cell, digits, (cell.method, cell.column, cell.metric) in best) for cell in row
        ]
        lines.append(" & ".join([_escaped(method), *values]) + r" \\")
        if any(cell.paired_gain is not None for cell in row):
            gains = [_gain(cell, digits) for cell in row]
            lines.append(" & ".join([r"\quad\footnotesize gain", *gains]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def to_csv(cells: Sequence[Cell]) -> str:
    """A line for every filled cell, numbers unrounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for cell in cells:
        if not cell.seeds:
            continue
        low, high = cell.ci95 or (None, None)
        published = (paper.mean, paper.sd) if (paper := cell.published) else (None, None)
        numbers = (cell.mean, cell.sd, cell.seeds, cell.paired_gain, low, high)
        places = (cell.method, cell.column, cell.metric)
        writer.writerow([*places, *numbers, *published, cell.published_gain])
    return text.getvalue()


def best_of(table: Table, cells: Sequence[Cell]) -> set[tuple[str, str, str]]:
    """Method, column and measure of the best mean in each column; of all that share it."""
    best = set()
    for measure in table.measures:
        sign = 1 if measure.definition.higher_is_better else -1
        for column in table.columns:
            known = [
                (sign * cell.mean, cell.method)
                for cell in cells
                if (cell.column, cell.metric) == (column, measure.name) and cell.mean is not None
            ]
            top = max(known, default=(0.0, ""))[0]
            best |= {(name, column, measure.name) for value, name in known if value == top}
    return best


def _value(cell: Cell, digits: int, best: bool) -> str:
    if cell.mean is None:
        return "--"
    mean = f"{cell.mean:.{digits}f}"
    spread = "" if cell.sd is None else rf" {{\footnotesize$\pm$ {cell.sd:.{digits}f}}}"
    return (rf"\textbf{{{mean}}}" if best else mean) + spread


def _gain(cell: Cell, digits: int) -> str:
    if cell.paired_gain is None:
        return ""
    return rf"\footnotesize ${gain_text(cell.paired_gain, cell.ci95, digits)}$"


def _escaped(text: str) -> str:
    return text.translate(_SPECIAL)
