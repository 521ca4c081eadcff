"""The paper's vision tables as runs, and small runs compared by differences alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from sphere_replay.cli import main
from sphere_replay.errors import ConfigError
from sphere_replay.reports.collection import FinishedRun, save_collection
from sphere_replay.reports.render import to_json, to_text
from sphere_replay.reports.tables import Agreement, agreements, fill
from sphere_replay.runs.domains import table_named, tables
from sphere_replay.runs.launch import run_folder
from sphere_replay.runs.table import Published, Spread, Table
from sphere_replay.runs.table_runs import runs_of
from sphere_replay.vision.config import VisionConfig

TABLES = tables()
LARGE = ("cifar10", "cifar100", "tiny-imagenet")
PAIRED = {"ER + SPHERE": "ER", "ER-ACE + SPHERE": "ER-ACE", "X-DER + SPHERE": "X-DER"}


def baselines(table: Table) -> dict[str, str | None]:
    return {row.method: row.baseline for row in table.rows}


def vision(name: str, method: str, column: str, seed: int = 0) -> VisionConfig:
    (run,) = runs_of(TABLES[name], [seed], [method], [column])
    assert isinstance(run.config, VisionConfig)
    return run.config


@pytest.mark.parametrize("name", LARGE)
def test_the_large_tables_have_every_row_and_column(name: str) -> None:
    table = TABLES[name]
    assert tuple(table.columns) == ("Clean", "20%", "40%", "60%")
    ours = [method for method in table.methods if "calibrated" in method]
    assert len(table.methods) - len(ours) == 12
    assert bool(ours) is (name == "cifar10")
    assert PAIRED.items() <= baselines(table).items()
    assert baselines(table)["PuriDivER + SPHERE"] == "PuriDivER"
    assert baselines(table)["MIR-prop"] == "ER"
    hosts = {row.host for row in table.rows}
    assert hosts == {"er", "er-ace", "der-pp", "xder", "gdumb", "puridiver", "abs"}
    # Three rows have no clean value in the tables of many classes.
    assert len(table.published) == (48 if name == "cifar10" else 45)
    assert ("PuriDivER", "20%", "class_il") in table.published


@pytest.mark.parametrize(
    ("name", "method", "column", "mean", "sd"),
    [
        ("cifar10", "PuriDivER + SPHERE", "60%", 51.3, 4.3),
        ("cifar10", "X-DER + SPHERE", "20%", 27.5, 8.9),
        ("cifar100", "X-DER", "20%", 16.2, 6.1),
        ("cifar100", "GDumb", "Clean", 25.2, 1.0),
        ("tiny-imagenet", "ABS-based", "60%", 16.2, 0.3),
        ("tiny-imagenet", "ER", "60%", 3.3, 0.4),
    ],
)
def test_published_values_are_the_printed_ones(
    name: str, method: str, column: str, mean: float, sd: float
) -> None:
    assert TABLES[name].published[method, column, "class_il"] == Published(mean, sd)


def test_retention_has_six_measures_at_three_rates_of_the_same_runs() -> None:
    table = TABLES["cifar10-retention"]
    assert tuple(table.columns) == ("20%", "40%", "60%")
    assert len(table.published) == 7 * 3 * 6 == len(table.cell_keys())
    assert table.published["ER-ACE + SPHERE", "20%", "cvar_02"] == Published(46.5, 10.8)
    assert table.published["GDumb", "60%", "worst_class"] == Published(3.8, 2.8)
    for method in table.methods:
        folders = {
            run_folder(vision(name, method, "40%"), Path()).path.name
            for name in ("cifar10", "cifar10-retention")
        }
        assert len(folders) == 1


def test_both_tables_print_nearly_the_same_class_il() -> None:
    whole, part = TABLES["cifar10"].published, TABLES["cifar10-retention"].published
    for (method, column, metric), value in part.items():
        if metric == "class_il":
            printed = whole[method, column, metric]
            assert value.mean == printed.mean
            assert value.sd == pytest.approx(printed.sd, abs=0.11)  # rounded apart in the paper


def test_the_neighborhood_ablation_is_clean_paired_and_of_the_sample() -> None:
    table = TABLES["cifar10-neighborhood"]
    assert (list(table.columns), table.spread) == (["Clean"], Spread.SAMPLE)
    assert baselines(table) == {"S = I": None, "SPHERE": "S = I"}
    assert vision("cifar10-neighborhood", "S = I", "Clean").select == "sphere-identity"
    assert vision("cifar10-neighborhood", "SPHERE", "Clean").noise == 0
    assert table.published["SPHERE", "Clean", "top2_forgetting"] == Published(59.53, 8.81)


@pytest.mark.parametrize("name", LARGE)
def test_the_small_form_has_the_same_rows_at_a_smaller_scale(name: str) -> None:
    table = table_named(name, small=True)
    assert table.name == f"{name}-small"
    assert (table.rows, table.columns) == (TABLES[name].rows, TABLES[name].columns)
    (run,) = runs_of(table, [3], ["ER"], ["40%"])
    config = run.config
    assert isinstance(config, VisionConfig)
    full = vision(name, "ER", "40%")
    assert config.capacity == full.capacity
    assert config.width < full.width
    assert config.limit is not None
    assert not TABLES[name].relative


@pytest.mark.parametrize(
    ("name", "own", "paper"),
    [
        ("coding", "coding-micro", "coding-qwen"),
        ("instruct", "instruct-tiny", "instruct-t5-large"),
        ("instruct-ablation", "instruct-tiny", "instruct-t5-large"),
        ("instruct-neighborhood", "instruct-tiny", "instruct-t5-large"),
    ],
)
def test_values_stand_beside_published_ones_only_if_the_model_is_the_papers(
    name: str, own: str, paper: str
) -> None:
    table = TABLES[name]
    assert (table.preset, table.relative) == (own, True)
    assert not table.with_preset(paper).relative
    assert table.with_preset(paper).with_preset(own).relative
    assert TABLES["cifar10"].with_preset("cifar10-small").relative
    assert not TABLES["instruct-generated"].relative  # nothing was published


@pytest.mark.parametrize("name", ["cifar10-frozen", "cifar100-frozen"])
def test_tables_of_frozen_encoders_have_nothing_published(name: str) -> None:
    table = TABLES[name]
    hosts = [row.method for row in table.rows if row.baseline is None]
    assert hosts == ["ER", "ER-ACE", "DER++"]
    assert tuple(table.columns) == ("Clean", "20%", "40%", "60%")
    assert (table.published, table.relative) == ({}, False)
    config = vision(name, "ER + SPHERE", "40%")
    assert (config.encoder, config.select, config.noise) == ("efficientnet-lite0", "sphere", 0.4)
    with pytest.raises(ConfigError, match=f"table {name} has no small form"):
        table_named(name, small=True)


def test_a_table_without_a_small_preset_has_no_small_form() -> None:
    with pytest.raises(ConfigError, match="table mnist has no small form"):
        table_named("mnist", small=True)


def results() -> list[FinishedRun]:
    """SPHERE helps ER by 5 and 7 points and harms ER-ACE by 2; ER-ACE is the worst of all."""
    accuracies = {
        "ER": (0.30, 0.40),
        "ER + SPHERE": (0.35, 0.47),
        "ER-ACE": (0.22, 0.22),
        "ER-ACE + SPHERE": (0.20, 0.20),
    }
    return [
        FinishedRun(method, "20%", seed, {"metrics": {"class_il": value}})
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


def test_small_runs_show_published_gains_and_never_published_values() -> None:
    table = TABLES["cifar10"].small()
    cells = fill(table, results())
    assert all(cell.published is None for cell in cells)
    by_place = {(cell.method, cell.column): cell for cell in cells}
    gained = by_place["ER + SPHERE", "20%"]
    assert gained.paired_gain == pytest.approx(6)
    assert gained.published_gain == pytest.approx(35.8 - 33.4)
    assert by_place["X-DER + SPHERE", "20%"].published_gain == pytest.approx(-0.6)
    assert by_place["ER", "20%"].published_gain is None
    shown = to_json(table, cells)
    assert all(row["published"] is None for row in shown["rows"])
    text = to_text(table, cells)
    assert "paper's gain +2.4" in text
    assert "33.4" not in text


def test_the_gain_of_a_measure_where_less_is_better_is_positive_if_it_fell() -> None:
    table = TABLES["cifar10-retention"].small()
    cells = {(cell.method, cell.column, cell.metric): cell for cell in fill(table, [])}
    gain = cells["ER-ACE + SPHERE", "20%", "average_forgetting"].published_gain
    assert gain == pytest.approx(25.3 - 15.3)


def test_orders_are_compared_pair_by_pair() -> None:
    """The paper: ER < ER + SPHERE < ER-ACE < ER-ACE + SPHERE at 20%; here only the first is so."""
    table = TABLES["cifar10"].small()
    cells = fill(table, results())
    assert agreements(table, cells) == [Agreement("20%", "class_il", 1, 6)]
    shown = to_json(table, cells)
    assert shown["orders"] == [{"column": "20%", "metric": "class_il", "agreeing": 1, "pairs": 6}]
    assert "20%, pairs of methods in the paper's order: 1 of 6 by Class-IL ↑." in shown["notes"]
    full = TABLES["cifar10"]
    assert "orders" not in to_json(full, fill(full, results()))


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_small_results_are_read_from_a_file_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[dict[str, Any]] = [
        {"method": run.method, "column": run.column, "seed": run.pair, **run.results}
        for run in results()
    ]
    words = ["table", "cifar10", "--small", "--results", str(tmp_path), "--json"]
    code, _, error = command(capsys, *words)
    assert code == 2
    assert "sphere sweep cifar10 --small --save" in error
    save_collection(tmp_path / "cifar10-small.json", "cifar10-small", "", {}, runs)
    code, out, _ = command(capsys, *words)
    assert (code, json.loads(out)["table"]) == (0, "cifar10-small")
    code, out, _ = command(capsys, *words[:-1])
    assert code == 0
    assert out.splitlines()[2].split() == ["Method", "20%"]
    assert "│" not in out  # what is not a terminal gets plain text


def test_the_preset_of_saved_results_decides_whether_published_values_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"method": "ER", "column": "20%", "seed": 0, "metrics": {"class_il": 0.3}}
    words = ["table", "cifar10", "--results", str(tmp_path), "--json"]
    shown = []
    for preset in ("cifar10", "cifar10-small"):
        path = tmp_path / "cifar10.json"
        path.unlink(missing_ok=True)
        save_collection(path, "cifar10", "", {"preset": preset}, [run])
        rows = json.loads(command(capsys, *words)[1])["rows"]
        shown.append([row["published"] for row in rows if row["mean"] is not None])
    assert shown[0][0]["mean"] > 0
    assert shown[1] == [None]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table", "mnist", "--small"], "table mnist has no small form"),
        (["sweep", "cifar10", "--small", "--preset", "cifar10"], "leave out --preset"),
        (["sweep", "cifar10", "--device", "gpu"], "unknown device 'gpu'"),
        (["run", "digits", "--device", "cudo"], "unknown device 'cudo': did you mean cuda"),
        (["run", "digits", "--set", "device=cuda"], "device has a place of its own"),
        (["sweep", "instruct", "--device", "cuda"], "unknown setting 'device'"),
    ],
)
def test_mistakes_are_answered_in_a_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = command(capsys, *words)
    assert (code, out) == (2, "")
    assert message in error
    assert error.count("\n") == 1


def test_a_sweep_with_options_of_the_hardware_is_told_in_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "digits.json"
    words = ["sweep", "digits", "--seeds", "1", "--out", str(tmp_path), "--save", str(saved)]
    words += ["--methods", "ER", "--columns", "Clean", "--set", "limit=60", "--quiet"]
    code, out, _ = command(capsys, *words, "--device", "cpu", "--set", "autocast=true")
    assert (code, "1 of 1 runs finished" in out) == (0, True)
    collection = json.loads(saved.read_text())
    assert "--device cpu --set limit=60 --set autocast=true" in collection["command"]
    assert collection["protocol"]["autocast"] is True
    (folder,) = tmp_path.glob("digits-er-*")
    config = json.loads((folder / "config.json").read_text())
    assert config["autocast"] is True
    assert config["device"] == "cpu"
