"""Domains plug into runs, tables and pictures; orders and seeds pair their runs."""

import json
from pathlib import Path

import numpy as np
import pytest

from sphere_replay.errors import ConfigError
from sphere_replay.reports.catalog import DEVELOPMENT_SEEDS, EVALUATION_SEEDS, TABLES
from sphere_replay.reports.collection import as_results, collect, pair_of
from sphere_replay.reports.comparison import draw_comparison
from sphere_replay.reports.figures import RunSummary, accuracy_figure, forgetting_figure
from sphere_replay.runs.domains import all_presets, domain_of, resolve
from sphere_replay.runs.launch import run_config, run_folder
from sphere_replay.runs.metrics import measure
from sphere_replay.runs.records import TaskMatrix, record_of

MATRIX = [[0.9, None, None], [0.5, 0.8, None], [0.3, 0.7, 1.0]]
RESULTS = {
    "task_ends": [4, 8, 12],
    "accuracy": {"values": MATRIX, "tasks": ["a", "b", "c"], "counts": [10, 10, 10]},
    "replay": {"mean_mass": 1.0},
}


def test_every_preset_belongs_to_one_domain() -> None:
    presets = all_presets()
    assert len(set(presets)) == len(presets)
    for preset in presets:
        assert resolve(preset, seed=3).seed == 3
        assert preset in domain_of(preset).presets


def test_an_unknown_preset_is_answered_with_a_close_one() -> None:
    with pytest.raises(ConfigError, match="did you mean instruct-tiny"):
        resolve("instruct-tyni")


def test_a_setting_of_another_domain_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'noise'"):
        resolve("instruct-tiny", noise=0.4)
    with pytest.raises(ConfigError, match="unknown setting 'order'"):
        resolve("digits", order="1")


def test_runs_of_a_table_with_orders_are_pairs_of_order_and_seed() -> None:
    table = TABLES["instruct"]
    for seeds, first in ((EVALUATION_SEEDS, 0), (DEVELOPMENT_SEEDS, 1000)):
        cells = table.cells(seeds[:4], methods=["ER"], columns=["K = 300"])
        settings = [cell.config.to_dict() for cell in cells]
        assert [(s["order"], s["seed"]) for s in settings] == [
            ("0", first),
            ("1", first),
            ("2", first),
            ("0", first + 1),
        ]
        assert {s["capacity"] for s in settings} == {300}
        assert {s["corpus"] for s in settings} == {"classification"}


def test_tables_of_a_domain_share_their_runs() -> None:
    def identities(name: str, method: str) -> list[str]:
        cells = TABLES[name].cells(range(3), methods=[method], columns=["K = 300"])
        return [run_folder(cell.config, Path("runs")).path.name for cell in cells]

    full = identities("instruct", "SPHERE")
    assert full == identities("instruct-ablation", "Full SPHERE")
    assert full == identities("instruct-neighborhood", "SPHERE")


def test_another_preset_changes_the_scale_and_keeps_the_columns() -> None:
    table = TABLES["instruct"].with_preset("instruct-t5-large")
    (cell,) = table.cells([0], methods=["SPHERE"], columns=["K = 3000"])
    settings = cell.config.to_dict()
    assert settings["model"] == "google-t5/t5-large"
    assert (settings["capacity"], settings["cap"], settings["pool"]) == (3000, 1000, 512)


def test_results_per_task_have_the_metrics_of_tasks_and_no_others() -> None:
    record = record_of(RESULTS)
    assert isinstance(record, TaskMatrix)
    metrics = measure(record)
    assert metrics["final_accuracy"] == pytest.approx((0.3 + 0.7 + 1.0) / 3)
    assert metrics["worst_forgetting"] == pytest.approx(0.6)
    assert metrics["new_task_accuracy"] == pytest.approx(0.9)
    assert "class_il" not in metrics


def test_pictures_of_tasks_speak_of_tasks() -> None:
    runs = [
        RunSummary(method, "K = 300", pair, RESULTS)
        for method in ("ER", "SPHERE")
        for pair in ("order 0, seed 0", "order 1, seed 0")
    ]
    figure = accuracy_figure(runs)
    axes = figure.axes[0]
    assert axes.get_ylabel() == "accuracy over the tasks seen so far (%)"
    (line,) = [line for line in axes.lines if line.get_label() == "ER"]
    steps, values = np.asarray(line.get_data(), dtype=float).tolist()
    assert steps == [4, 8, 12]
    assert values == pytest.approx([90, 65, 200 / 3])
    lost = forgetting_figure(runs).axes[0]
    assert lost.get_xlabel() == "task, by its place in the stream"


def test_a_run_of_instruction_tuning_goes_from_preset_to_pictures(tmp_path: Path) -> None:
    table = TABLES["instruct"]
    settings = {
        "corpus": "generated",
        "order": "place,alive,order",
        "cap": 32,
        "tests_per_task": 10,
        "capacity": 20,
        "warm_up": 1,
    }
    cells = table.cells([0], methods=["ER", "SPHERE"], columns=["K = 300"], **settings)
    for cell in cells:
        results = run_config(cell.config, tmp_path)
        assert results == json.loads(
            (run_folder(cell.config, tmp_path).path / "results.json").read_text()
        )
    runs = collect(cells, tmp_path)
    assert [pair_of(run) for run in runs] == ["order place,alive,order, seed 0"] * 2
    assert as_results(runs)[1].metrics.keys() >= {"final_accuracy", "tail_forgetting"}
    pictures = draw_comparison(cells, tmp_path, tmp_path / "pictures")
    assert [path.name for path in pictures] == ["accuracy-over-stream.png", "forgetting.png"]
    assert all(path.stat().st_size > 1000 for path in pictures)
