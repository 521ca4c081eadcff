"""Tables of the coding domain: four stages of problems with incomplete test rewards."""

from sphere_replay.runs.table import Measure, Row, Table, by_cell

_UNIFORM = "Uniform replay"
_ROWS = (
    Row("No replay", "none", "uniform", _UNIFORM),
    Row(_UNIFORM, "er", "uniform"),
    Row("MIR", "er", "mir", _UNIFORM),
    Row("No transport", "er", "sphere-no-transport", _UNIFORM),
    Row("Permuted geometry", "er", "sphere-permuted", _UNIFORM),
    Row("SPHERE", "er", "sphere", _UNIFORM),
)
_MEASURES = tuple(
    Measure(name)
    for name in ("final_accuracy", "old_accuracy", "worst_task", "mean_forgetting", "bwt")
)
_COLUMN = "four stages"
_PUBLISHED = {
    _UNIFORM: "42.75/2.92 43.56 40.00 4.00 -2.78",
    "MIR": "44.50/1.63 45.78 38.67 4.56 -3.89",
    "No transport": "42.67/1.70 41.78 39.67 6.56 -5.56",
    "Permuted geometry": "48.58/1.88 45.78 41.67 3.56 -2.89",
    "SPHERE": "49.08/0.80 46.89 43.67 3.33 -1.56",
}

CODING_TABLES = (
    Table(
        "coding",
        "Code generation in four stages, full-suite accuracy (%)",
        "coding-micro",
        _ROWS,
        {_COLUMN: {}},
        _MEASURES,
        published=by_cell(
            _MEASURES, {(method, _COLUMN): text for method, text in _PUBLISHED.items()}
        ),
        paper_preset="coding-qwen",
    ),
)
