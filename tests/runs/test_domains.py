"""Domains plug into runs, tables and pictures; orders and seeds pair their runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sphere_replay.errors import ConfigError
from sphere_replay.reports.collection import FinishedRun, from_entries, read_finished, to_entries
from sphere_replay.reports.comparison import draw_comparison
from sphere_replay.reports.figures import accuracy_figure, forgetting_figure
from sphere_replay.runs.domains import (
    DOMAINS,
    all_presets,
    domain,
    domain_of,
    domains,
    options,
    resolve,
    table_named,
    tables,
)
from sphere_replay.runs.launch import run_config, run_folder
from sphere_replay.runs.metrics import measure
from sphere_replay.runs.records import TaskMatrix, record_of
from sphere_replay.runs.table import Table
from sphere_replay.runs.table_runs import DEVELOPMENT_SEEDS, EVALUATION_SEEDS, runs_of

MATRIX = [[0.9, None, None], [0.5, 0.8, None], [0.3, 0.7, 1.0]]
RESULTS = {
    "task_ends": [4, 8, 12],
    "accuracy": {"values": MATRIX, "tasks": ["a", "b", "c"], "counts": [10, 10, 10]},
    "replay": {"mean_mass": 1.0},
}


LIGHT = """
import json, os, sys, traceback

class Refuse:
    def find_spec(self, name, path=None, target=None):
        heavy = {"transformers", "trl", "peft", "datasets", "sklearn", "PIL", "scipy", "matplotlib"}
        if name.partition(".")[0] in heavy:
            raise ModuleNotFoundError(f"{name} is not for this test", name=name)

def load(name, preset=None):
    from sphere_replay.runs.domains import DOMAINS, domain, tables
    domain(name)
    if preset is not None:
        from sphere_replay.runs.domains import resolve
        from sphere_replay.runs.launch import run_config
        from pathlib import Path
        run_config(resolve(preset), Path("."))
    jobs = [name for name in DOMAINS if f"sphere_replay.{name}.job" in sys.modules]
    return [len(tables()), jobs]

sys.meta_path.insert(0, Refuse())
import torch
for line in sys.argv[1:]:
    if not os.fork():
        try:
            told = load(*line.split())
        except Exception as error:
            told = traceback.format_exception_only(error)[-1].rstrip()
        print(json.dumps([line, told]), flush=True)
        os._exit(0)
    os.wait()
"""
"""What becomes of each argument, in a process of its own after an import of torch they share."""
PRESETS = ("digits", "instruct-tiny", "coding-micro")


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    lines = [*DOMAINS, *(f"{domain_of(preset).name} {preset}" for preset in PRESETS)]
    command = [sys.executable, "-c", LIGHT, *lines]
    folder = tmp_path_factory.mktemp("light")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", DOMAINS)
def test_a_domain_loads_with_torch_alone(name: str, light: dict[str, Any]) -> None:
    assert light[name] == [len(tables()), []]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_job_that_lacks_a_module_names_the_extra_of_its_domain(
    preset: str, light: dict[str, Any]
) -> None:
    owner = domain_of(preset)
    sentence = light[f"{owner.name} {preset}"]
    assert "DataError" in sentence
    assert "this needs " in sentence
    assert sentence.endswith(f": pip install 'sphere-replay[{owner.name}]'")


def test_each_domain_says_who_it_is() -> None:
    assert [each.name for each in domains()] == list(DOMAINS)
    for each in domains():
        assert each.name == resolve(each.names()[0]).DOMAIN
        assert all(domain_of(table.preset) is each for table in each.tables)
    names = [table.name for each in domains() for table in each.tables]
    assert len(set(names)) == len(names) == len(tables())


def test_an_option_of_several_domains_means_the_same_in_each() -> None:
    assert {name: owners for name, (_, owners) in options().items()} == {
        "noise": ["vision", "instruct"],
        "dataset": ["vision"],
        "limit": ["vision"],
        "device": ["vision", "coding"],
        "order": ["instruct"],
        "model": ["instruct", "coding"],
    }
    for option, owners in options().values():
        assert all(option in domain(owner).options for owner in owners)
        assert all(hasattr(resolve(domain(owner).names()[0]), option.name) for owner in owners)


def test_every_preset_belongs_to_one_domain() -> None:
    presets = all_presets()
    assert len(set(presets)) == len(presets)
    for preset in presets:
        assert resolve(preset, seed=3).seed == 3
        assert preset in domain_of(preset).names()


def test_an_unknown_preset_is_answered_with_a_close_one() -> None:
    with pytest.raises(ConfigError, match="did you mean instruct-tiny"):
        resolve("instruct-tyni")


def test_a_setting_of_another_domain_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'limit'"):
        resolve("instruct-tiny", limit=100)
    with pytest.raises(ConfigError, match="unknown setting 'order'"):
        resolve("digits", order="1")


def test_runs_of_a_table_with_orders_are_pairs_of_order_and_seed() -> None:
    table = table_named("instruct")
    for seeds, first in ((EVALUATION_SEEDS, 0), (DEVELOPMENT_SEEDS, 1000)):
        runs = runs_of(table, seeds[:4], methods=["ER"], columns=["K = 300"])
        settings = [run.config.to_dict() for run in runs]
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
        runs = runs_of(table_named(name), range(3), methods=[method], columns=["K = 300"])
        return [run_folder(run.config, Path("runs")).path.name for run in runs]

    full = identities("instruct", "SPHERE")
    assert full == identities("instruct-ablation", "Full SPHERE")
    assert full == identities("instruct-neighborhood", "SPHERE")


def test_a_table_that_shows_the_results_of_another_has_its_runs() -> None:
    shown = table_named("mnist-best")
    assert shown.results == "mnist"

    def folders(table: Table) -> list[str]:
        runs = runs_of(table, [0], methods=shown.methods, columns=list(shown.columns))
        return [run_folder(run.config, Path("runs")).path.name for run in runs]

    assert sorted(folders(shown)) == sorted(folders(table_named(shown.results)))
    assert shown.small().results == "mnist-small"


def test_another_preset_changes_the_scale_and_keeps_the_columns() -> None:
    table = table_named("instruct").with_preset("instruct-t5-large")
    (run,) = runs_of(table, [0], methods=["SPHERE"], columns=["K = 3000"])
    settings = run.config.to_dict()
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
        FinishedRun(method, "K = 300", pair, RESULTS)
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
    table = table_named("instruct")
    settings = {
        "corpus": "generated",
        "order": "place,alive,order",
        "cap": 32,
        "tests_per_task": 10,
        "capacity": 20,
        "warm_up": 1,
    }
    runs = runs_of(table, [0], methods=["ER", "SPHERE"], columns=["K = 300"], **settings)
    for run in runs:
        results = run_config(run.config, tmp_path)
        assert results == json.loads(
            (run_folder(run.config, tmp_path).path / "results.json").read_text()
        )
    kept = from_entries(to_entries(runs, tmp_path))
    assert [run.pair for run in kept] == ["order place,alive,order, seed 0"] * 2
    assert kept[1].results["metrics"].keys() >= {"final_accuracy", "tail_forgetting"}
    pictures = draw_comparison(read_finished(runs, tmp_path), tmp_path / "pictures")
    assert [path.name for path in pictures] == ["accuracy-over-stream.png", "forgetting.png"]
    assert all(path.stat().st_size > 1000 for path in pictures)
