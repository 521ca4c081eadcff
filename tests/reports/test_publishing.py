"""Tables for publication."""

import csv
import io

from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.publishing import best_of, to_csv, to_latex
from sphere_replay.reports.tables import fill
from sphere_replay.runs.table import Measure, Table, TableRow

TABLE = Table(
    "made",
    "Made up",
    "digits",
    (TableRow("A_1 & co", "er", "uniform"), TableRow("A + B", "er", "sphere", "A_1 & co")),
    {"40%": {}},
    (Measure("class_il"), Measure("average_forgetting")),
)
RUNS = [
    FinishedRun(method, "40%", seed, {"metrics": {"class_il": il, "average_forgetting": lost}})
    for method, seed, il, lost in [
        ("A_1 & co", 0, 0.5, 0.2),
        ("A_1 & co", 1, 0.6, 0.3),
        ("A + B", 0, 0.7, 0.4),
        ("A + B", 1, 0.9, 0.5),
    ]
]


def test_latex_has_booktabs_escapes_names_and_emphasises_the_best() -> None:
    text = to_latex(TABLE, fill(TABLE, RUNS))
    for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrr}"):
        assert word in text
    assert r"A\_1 \& co & 55.0 {\footnotesize$\pm$ 5.0} & \textbf{25.0}" in text
    assert r"A + B & \textbf{80.0}" in text
    assert r"40\%" in text
    assert r"$+25.0 [-38.5, +88.5]$" in text
    assert r"Class-IL $\uparrow$" in text


def test_the_best_is_the_least_where_less_is_better() -> None:
    assert best_of(TABLE, fill(TABLE, RUNS)) == {
        ("A + B", "40%", "class_il"),
        ("A_1 & co", "40%", "average_forgetting"),
    }


def test_csv_has_a_line_for_every_filled_cell() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(fill(TABLE, RUNS)))))
    assert len(rows) == 4
    assert rows[2]["method"] == "A + B"
    assert float(rows[2]["mean"]) == 80.0
    assert float(rows[2]["gain"]) == 25.0
    assert rows[0]["gain"] == ""
