"""From runs to cells: aggregation, pairing, published values, and four ways to show them."""

import io
import json
import math
from typing import Any

import pytest
from rich.console import Console

from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.render import (
    notes,
    to_brief,
    to_json,
    to_markdown,
    to_rich,
    to_text,
)
from sphere_replay.reports.tables import Cell, Passes, fill, mean_passes
from sphere_replay.runs.table import Measure, Published, Spread, Table, TableRow, Unit


def _run(method: str, column: str, seed: int, **metrics: float) -> FinishedRun:
    return FinishedRun(method, column, seed, {"metrics": metrics})


def _table(**changes: Any) -> Table:
    fields: dict[str, Any] = {
        "name": "demo",
        "title": "A demonstration",
        "preset": "digits",
        "rows": (TableRow("ER", "er", "uniform"), TableRow("ER + SPHERE", "er", "sphere", "ER")),
        "columns": {"clean": {"noise": 0.0}, "40%": {"noise": 0.4}},
        "measures": (Measure("class_il"), Measure("cvar_02"), Measure("class_il", "min")),
        "published": {("ER", "clean", "class_il"): Published(43.4, 5.7)},
    }
    return Table(**{**fields, **changes})


def _runs() -> list[FinishedRun]:
    accuracies = {
        "ER": [(0, 0.40, 0.5), (1, 0.50, 0.6), (2, 0.30, 0.7)],
        "ER + SPHERE": [(2, 0.35, 0.3), (1, 0.60, 0.4), (7, 0.90, 0.1)],
    }
    return [
        _run(method, "clean", seed, class_il=accuracy, cvar_02=forgetting)
        for method, seeds in accuracies.items()
        for seed, accuracy, forgetting in seeds
    ]


def _cell(cells: list[Cell], method: str, column: str, metric: str) -> Cell:
    (cell,) = [c for c in cells if (c.method, c.column, c.metric) == (method, column, metric)]
    return cell


def test_mean_and_deviation_by_hand() -> None:
    for spread, variance in ((Spread.POPULATION, 200 / 3), (Spread.SAMPLE, 100)):
        cell = _cell(fill(_table(spread=spread), _runs()), "ER", "clean", "class_il")
        assert cell.mean == pytest.approx(40)
        assert cell.sd == pytest.approx(variance**0.5)
        assert (cell.seeds, cell.paired_gain, cell.ci95) == (3, None, None)
        assert cell.published == Published(43.4, 5.7)


def test_gains_are_paired_on_common_seeds_and_positive_when_better() -> None:
    cells = fill(_table(), _runs())
    accuracy = _cell(cells, "ER + SPHERE", "clean", "class_il")
    # Seeds 1 and 2 are common: +10 and +5 points; seed 7 has no partner. With one degree of
    # freedom Student's t is Cauchy's distribution, whose quantiles are tangents.
    half = math.tan(0.475 * math.pi) * (12.5**0.5) / 2**0.5
    assert accuracy.seeds == 3
    assert accuracy.paired_gain == pytest.approx(7.5)
    assert accuracy.ci95 == pytest.approx((7.5 - half, 7.5 + half))
    forgetting = _cell(cells, "ER + SPHERE", "clean", "cvar_02")
    assert forgetting.paired_gain == pytest.approx((20 + 40) / 2)
    assert forgetting.mean == pytest.approx(80 / 3)


def test_extremes_over_runs_have_no_deviation_and_no_gain() -> None:
    cell = _cell(fill(_table(), _runs()), "ER + SPHERE", "clean", "min_class_il")
    assert cell.mean == pytest.approx(35)
    assert (cell.sd, cell.paired_gain, cell.seeds) == (None, None, 3)
    table = _table(measures=(Measure("cvar_02", "max"),), published={})
    assert _cell(fill(table, _runs()), "ER", "clean", "max_cvar_02").mean == 70


def test_a_single_seed_has_no_interval() -> None:
    runs = [_run(m, "clean", 0, class_il=0.5) for m in ("ER", "ER + SPHERE")]
    cells = fill(_table(spread=Spread.SAMPLE), runs)
    cell = _cell(cells, "ER + SPHERE", "clean", "class_il")
    assert (cell.mean, cell.sd, cell.paired_gain, cell.ci95) == (50, None, 0, None)


def test_every_cell_is_there_also_without_runs_or_without_the_metric() -> None:
    table = _table()
    cells = fill(table, [_run("ER", "40%", 0, class_il=0.2)])
    assert [(cell.method, cell.column, cell.metric) for cell in cells] == table.cell_keys()
    assert _cell(cells, "ER", "40%", "cvar_02").seeds == 0
    assert _cell(cells, "ER", "clean", "class_il").mean is None
    assert fill(table, []) != cells


def test_fractions_stay_fractions() -> None:
    cells = fill(_table(unit=Unit.FRACTION), _runs())
    assert _cell(cells, "ER", "clean", "class_il").mean == pytest.approx(0.4)
    assert "0.400 ± 0.082" in to_text(_table(unit=Unit.FRACTION), cells)


def test_json_has_the_promised_shape() -> None:
    cells = fill(_table(), _runs())
    shown = json.loads(json.dumps(to_json(_table(), cells), allow_nan=False))
    assert shown["table"] == "demo"
    assert len(shown["rows"]) == 12
    keys = "method column metric mean sd seeds published paired_gain ci95"
    assert list(shown["rows"][0]) == keys.split()
    assert shown["rows"][0]["published"] == {"mean": 43.4, "sd": 5.7}
    gained = shown["rows"][6]
    assert gained["method"] == "ER + SPHERE"
    assert gained["published"] is None
    assert gained["ci95"][0] < gained["paired_gain"] < gained["ci95"][1]


def test_plain_text_in_full() -> None:
    table = _table(measures=(Measure("class_il"),))
    assert to_text(table, fill(table, _runs())) == (
        "A demonstration\n"
        "\n"
        "Method       clean\n"
        "-----------  ------------------------\n"
        "ER           40.0 ± 8.2\n"
        "             paper 43.4 ± 5.7\n"
        "ER + SPHERE  61.7 ± 22.5\n"
        "             gain +7.5 [-24.3, +39.3]\n"
        "\n"
        "Class-IL ↑: (1/T) Σ_j A[T, j], A[T, j] over the test examples of task j, no task "
        "identity.\n"
        "Values are mean ± SD over seeds, in percent; SD: population standard deviation, "
        "sqrt(Σ (x - mean)² / n), n seeds.\n"
        "gain: mean paired improvement over the baseline on common seeds, positive is better "
        "(ER + SPHERE - ER); in brackets its 95% confidence interval, Student's t.\n"
        "paper: the published value.\n"
        "Columns without runs: 40%.\n"
        "n = 3 in every filled cell.\n"
    )


def test_costs_are_means_over_the_runs_of_a_method() -> None:
    costs = [
        {"forward_per_example": 6.0, "backward_per_example": 2.0, "scored_per_example": 4.0},
        {"forward_per_example": 10.0, "backward_per_example": 2.0, "scored_per_example": 8.0},
    ]
    runs = [
        FinishedRun("ER + SPHERE", "clean", seed, {"metrics": {"class_il": 0.5}, "costs": passes})
        for seed, passes in enumerate(costs)
    ]
    runs.append(_run("ER", "clean", 0, class_il=0.5))
    passes = mean_passes(runs)
    assert passes == {"ER + SPHERE": Passes(8.0, 2.0, 6.0)}
    table = _table(measures=(Measure("class_il"),))
    cells = fill(table, runs)
    heading, _, *lines = to_markdown(table, cells, passes).splitlines()[2:6]
    assert heading.endswith("| Passes |")
    assert [line.split(" | ")[-1] for line in lines] == ["-- |", "8.0 + 2.0<br>6.0 scored |"]
    assert to_json(table, cells, passes)["passes"]["ER + SPHERE"]["scored"] == 6
    assert "Passes" not in to_text(table, cells)


def test_rows_and_columns_without_runs_are_named_and_not_shown() -> None:
    table = _table(measures=(Measure("class_il"),), published={})
    cells = fill(table, [_run("ER", "40%", 0, class_il=0.5)])
    lines = to_markdown(table, cells).splitlines()
    assert lines[2] == "| Method | 40% |"
    assert lines[4] == "| ER | 50.0 |"
    assert lines[5] == ""
    assert {"- Rows without runs: ER + SPHERE.", "- Columns without runs: clean."} <= set(lines)


def test_markdown_is_a_table_with_its_definitions() -> None:
    table = _table(rows=(TableRow("a|b", "er", "uniform"),), columns={"clean": {}}, published={})
    lines = to_markdown(table, fill(table, [])).splitlines()
    assert lines[2] == "| Method | Class-IL ↑ | CVaR_0.2 ↓ | Min. Class-IL ↑ |"
    assert lines[3] == "| --- | ---: | ---: | ---: |"
    assert lines[4] == "| a\\|b | -- | -- | -- |"
    assert lines[6].startswith("- Class-IL ↑: (1/T)")
    assert any("the min over runs, no SD" in line for line in lines)


def test_rich_shows_intervals_and_notes_unharmed() -> None:
    cells = fill(_table(), _runs())
    console = Console(width=200, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(to_rich(_table(), cells))
    shown = capture.get()
    assert "gain +7.5 [-24.3, +39.3]" in shown
    assert "paper 43.4 ± 5.7" in shown
    assert "population standard deviation" in shown


def test_uneven_numbers_of_seeds_are_shown_in_the_cells() -> None:
    table = _table(measures=(Measure("class_il"),))
    cells = fill(table, _runs()[:-1])
    assert "40.0 ± 8.2 (n=3)" in to_text(table, cells)
    assert "(n=2)" in to_text(table, cells)
    assert not any(note.startswith("n = ") for note in notes(table, cells))


def test_notes_name_the_kind_of_deviation() -> None:
    cells = fill(_table(), [])
    assert any("sample standard deviation" in n for n in notes(_table(spread=Spread.SAMPLE), cells))
    assert not any("gain" in note for note in notes(_table(), cells))


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([_run("DER", "clean", 0)], "no cell for method 'DER'"),
        ([_run("ER", "80%", 0)], "in column '80%'"),
        ([_run("ER", "clean", 0)] * 2, "seed 0: a run counts once"),
    ],
)
def test_runs_out_of_place_are_refused(runs: list[FinishedRun], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill(_table(), runs)


def test_tables_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValueError, match="baseline 'MIR' of 'ER'"):
        _table(rows=(TableRow("ER", "er", "uniform", "MIR"),))
    with pytest.raises(ValueError, match="published value but no cell"):
        _table(published={("ER", "clean", "bwt"): Published(1.0)})
    with pytest.raises(ValueError, match="unknown metric 'accuracy'"):
        Measure("accuracy")


def test_brief_is_the_first_measure_with_its_gains() -> None:
    heading, _, host, ours, _, note = to_brief(_table(), fill(_table(), _runs())).splitlines()
    assert heading == "| Method | clean |"
    assert host == "| ER | 40.0 |"
    assert ours.startswith("| ER + SPHERE | 61.7 (+7.5 [")
    assert "n = 3 seeds" in note
    assert "gain over ER" in note


def test_brief_counts_seeds_where_they_differ_and_names_no_baseline_that_is_not_there() -> None:
    runs = [run for run in _runs() if run.method == "ER"]
    runs.append(_run("ER", "40%", 0, class_il=0.2))
    *_, note = to_brief(_table(), fill(_table(), runs)).splitlines()
    assert note.endswith("mean over n = 1 to 3 seeds.")
