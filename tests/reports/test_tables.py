"""From runs to cells: aggregation, pairing, published values, and four ways to show them."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from sphere_replay.reports.render import notes, to_json, to_markdown, to_rich, to_text
from sphere_replay.reports.statistics import Spread, student_t_quantile
from sphere_replay.reports.tables import (
    Measure,
    Passes,
    Published,
    Result,
    Row,
    TableSpec,
    Unit,
    build_rows,
    mean_passes,
)


def _spec(**changes: Any) -> TableSpec:
    fields: dict[str, Any] = {
        "name": "demo",
        "title": "A demonstration",
        "methods": {"ER": None, "ER + SPHERE": "ER"},
        "columns": ("clean", "40%"),
        "measures": (Measure("class_il"), Measure("cvar_02"), Measure("class_il", "min")),
        "published": {("ER", "clean", "class_il"): Published(43.4, 5.7)},
    }
    return TableSpec(**{**fields, **changes})


def _results() -> list[Result]:
    runs = {
        "ER": [(0, 0.40, 0.5), (1, 0.50, 0.6), (2, 0.30, 0.7)],
        "ER + SPHERE": [(2, 0.35, 0.3), (1, 0.60, 0.4), (7, 0.90, 0.1)],
    }
    return [
        Result(method, "clean", seed, {"class_il": accuracy, "cvar_02": forgetting})
        for method, seeds in runs.items()
        for seed, accuracy, forgetting in seeds
    ]


def _cell(rows: list[Row], method: str, column: str, metric: str) -> Row:
    (row,) = [r for r in rows if (r.method, r.column, r.metric) == (method, column, metric)]
    return row


def test_mean_and_deviation_by_hand() -> None:
    for spread, variance in ((Spread.POPULATION, 200 / 3), (Spread.SAMPLE, 100)):
        row = _cell(build_rows(_spec(spread=spread), _results()), "ER", "clean", "class_il")
        assert row.mean == pytest.approx(40)
        assert row.sd == pytest.approx(variance**0.5)
        assert (row.seeds, row.paired_gain, row.ci95) == (3, None, None)
        assert row.published == Published(43.4, 5.7)


def test_gains_are_paired_on_common_seeds_and_positive_when_better() -> None:
    rows = build_rows(_spec(), _results())
    accuracy = _cell(rows, "ER + SPHERE", "clean", "class_il")
    # Seeds 1 and 2 are common: +10 and +5 points; seed 7 has no partner.
    half = student_t_quantile(0.975, 1) * (12.5**0.5) / 2**0.5
    assert accuracy.seeds == 3
    assert accuracy.paired_gain == pytest.approx(7.5)
    assert accuracy.ci95 == pytest.approx((7.5 - half, 7.5 + half))
    forgetting = _cell(rows, "ER + SPHERE", "clean", "cvar_02")
    assert forgetting.paired_gain == pytest.approx((20 + 40) / 2)
    assert forgetting.mean == pytest.approx(80 / 3)


def test_extremes_over_runs_have_no_deviation_and_no_gain() -> None:
    row = _cell(build_rows(_spec(), _results()), "ER + SPHERE", "clean", "min_class_il")
    assert row.mean == pytest.approx(35)
    assert (row.sd, row.paired_gain, row.seeds) == (None, None, 3)
    spec = _spec(measures=(Measure("cvar_02", "max"),), published={})
    assert _cell(build_rows(spec, _results()), "ER", "clean", "max_cvar_02").mean == 70


def test_a_single_seed_has_no_interval() -> None:
    results = [Result(m, "clean", 0, {"class_il": 0.5}) for m in ("ER", "ER + SPHERE")]
    rows = build_rows(_spec(spread=Spread.SAMPLE), results)
    row = _cell(rows, "ER + SPHERE", "clean", "class_il")
    assert (row.mean, row.sd, row.paired_gain, row.ci95) == (50, None, 0, None)


def test_every_cell_has_a_row_also_without_runs_or_without_the_metric() -> None:
    spec = _spec()
    rows = build_rows(spec, [Result("ER", "40%", 0, {"class_il": 0.2})])
    assert [(row.method, row.column, row.metric) for row in rows] == spec.cells()
    assert _cell(rows, "ER", "40%", "cvar_02").seeds == 0
    assert _cell(rows, "ER", "clean", "class_il").mean is None
    assert build_rows(spec, []) != rows


def test_fractions_stay_fractions() -> None:
    rows = build_rows(_spec(unit=Unit.FRACTION), _results())
    assert _cell(rows, "ER", "clean", "class_il").mean == pytest.approx(0.4)
    assert "0.400 ± 0.082" in to_text(_spec(unit=Unit.FRACTION), rows)


def test_json_has_the_promised_shape() -> None:
    rows = build_rows(_spec(), _results())
    table = json.loads(json.dumps(to_json(_spec(), rows), allow_nan=False))
    assert table["table"] == "demo"
    assert len(table["rows"]) == 12
    keys = "method column metric mean sd seeds published paired_gain ci95"
    assert list(table["rows"][0]) == keys.split()
    assert table["rows"][0]["published"] == {"mean": 43.4, "sd": 5.7}
    gained = table["rows"][6]
    assert gained["method"] == "ER + SPHERE"
    assert gained["published"] is None
    assert gained["ci95"][0] < gained["paired_gain"] < gained["ci95"][1]


def test_plain_text_in_full() -> None:
    spec = _spec(measures=(Measure("class_il"),), columns=("clean", "40%"))
    assert to_text(spec, build_rows(spec, _results())) == (
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
    results = [
        Result("ER + SPHERE", "clean", seed, {"class_il": 0.5}, passes)
        for seed, passes in enumerate(costs)
    ]
    results.append(Result("ER", "clean", 0, {"class_il": 0.5}))
    passes = mean_passes(results)
    assert passes == {"ER + SPHERE": Passes(8.0, 2.0, 6.0)}
    spec = _spec(measures=(Measure("class_il"),))
    rows = build_rows(spec, results)
    heading, _, *lines = to_markdown(spec, rows, passes).splitlines()[2:6]
    assert heading.endswith("| Passes |")
    assert [line.split(" | ")[-1] for line in lines] == ["-- |", "8.0 + 2.0<br>6.0 scored |"]
    assert to_json(spec, rows, passes)["passes"]["ER + SPHERE"]["scored"] == 6
    assert "Passes" not in to_text(spec, rows)


def test_rows_and_columns_without_runs_are_named_and_not_shown() -> None:
    spec = _spec(measures=(Measure("class_il"),), columns=("clean", "40%"), published={})
    rows = build_rows(spec, [Result("ER", "40%", 0, {"class_il": 0.5})])
    lines = to_markdown(spec, rows).splitlines()
    assert lines[2] == "| Method | 40% |"
    assert lines[4] == "| ER | 50.0 |"
    assert lines[5] == ""
    assert {"- Rows without runs: ER + SPHERE.", "- Columns without runs: clean."} <= set(lines)


def test_markdown_is_a_table_with_its_definitions() -> None:
    spec = _spec(methods={"a|b": None}, columns=("clean",), published={})
    lines = to_markdown(spec, build_rows(spec, [])).splitlines()
    assert lines[2] == "| Method | Class-IL ↑ | CVaR_0.2 ↓ | Min. Class-IL ↑ |"
    assert lines[3] == "| --- | ---: | ---: | ---: |"
    assert lines[4] == "| a\\|b | -- | -- | -- |"
    assert lines[6].startswith("- Class-IL ↑: (1/T)")
    assert any("the min over runs, no SD" in line for line in lines)


def test_rich_shows_intervals_and_notes_unharmed() -> None:
    rows = build_rows(_spec(), _results())
    console = Console(width=200, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(to_rich(_spec(), rows))
    shown = capture.get()
    assert "gain +7.5 [-24.3, +39.3]" in shown
    assert "paper 43.4 ± 5.7" in shown
    assert "population standard deviation" in shown


def test_uneven_numbers_of_seeds_are_shown_in_the_cells() -> None:
    spec = _spec(measures=(Measure("class_il"),))
    rows = build_rows(spec, _results()[:-1])
    assert "40.0 ± 8.2 (n=3)" in to_text(spec, rows)
    assert "(n=2)" in to_text(spec, rows)
    assert not any(note.startswith("n = ") for note in notes(spec, rows))


def test_notes_name_the_kind_of_deviation() -> None:
    rows = build_rows(_spec(), [])
    assert any("sample standard deviation" in n for n in notes(_spec(spread=Spread.SAMPLE), rows))
    assert not any("gain" in note for note in notes(_spec(), rows))


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([Result("DER", "clean", 0, {})], "no cell for method 'DER'"),
        ([Result("ER", "80%", 0, {})], "in column '80%'"),
        ([Result("ER", "clean", 0, {})] * 2, "seed 0: a run counts once"),
    ],
)
def test_results_out_of_place_are_refused(results: list[Result], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_rows(_spec(), results)


def test_tables_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValueError, match="baseline 'MIR' of 'ER'"):
        _spec(methods={"ER": "MIR"})
    with pytest.raises(ValueError, match="published value but no cell"):
        _spec(published={("ER", "clean", "bwt"): Published(1.0)})
    with pytest.raises(ValueError, match="unknown metric 'accuracy'"):
        Measure("accuracy")
