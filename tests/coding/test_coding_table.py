"""The table and the picture of code generation, from made-up results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sphere_replay.cli import main
from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.figures import reward_figure, smoothed
from sphere_replay.runs.domains import table_named
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.launch import run_folder
from sphere_replay.runs.metrics import measure
from sphere_replay.runs.records import record_of
from sphere_replay.runs.table import Published
from sphere_replay.runs.table_runs import runs_of

METHODS = {
    "No replay": ("none", "uniform"),
    "Uniform replay": ("er", "uniform"),
    "MIR": ("er", "mir"),
    "No transport": ("er", "sphere-no-transport"),
    "Permuted geometry": ("er", "sphere-permuted"),
    "SPHERE": ("er", "sphere"),
}


def made_up(lost: float) -> dict[str, Any]:
    """A run that learns each stage to 0.8 and then loses some of it."""
    rows = [[0.8 - lost * (t > j) if t >= j else 0.3 for j in range(4)] for t in range(4)]
    results: dict[str, Any] = {
        "task_ends": [2, 4, 6, 8],
        "accuracy": {
            "values": rows,
            "initial": [0.3] * 4,
            "tasks": ["a", "b", "c", "d"],
            "counts": [10] * 4,
        },
        "reward": {"visible": [0.25, 0.75] * 4, "hollow_share": 0.1},
        "replay": {"mean_mass": 1.0},
        "costs": {"updates": 8},
    }
    return results | {"metrics": measure(record_of(results))}


def test_the_table_has_the_papers_rows_and_numbers() -> None:
    table = table_named("coding")
    runs = runs_of(table, [0])
    assert {run.method: (run.config.host, run.config.select) for run in runs} == METHODS
    assert all(run.config.to_dict()["model"] == "micro" for run in runs)
    published = table.published
    (column,) = table.columns
    assert published["SPHERE", column, "final_accuracy"] == Published(49.08, 0.80)
    assert published["SPHERE", column, "bwt"] == Published(-1.56)
    assert published["Permuted geometry", column, "old_accuracy"] == Published(45.78)
    assert published["No transport", column, "mean_forgetting"] == Published(6.56)
    assert len(published) == 25
    assert not any(method == "No replay" for method, _, _ in published)
    baselines = dict.fromkeys(METHODS, "Uniform replay") | {"Uniform replay": None}
    assert {row.method: row.baseline for row in table.rows} == baselines


@pytest.mark.parametrize("preset", ["coding-qwen", "coding-smollm2"])
def test_the_table_runs_at_other_scales(preset: str) -> None:
    table = table_named("coding").with_preset(preset)
    runs = runs_of(table, [0, 1], methods=["SPHERE"])
    assert [run.config.seed for run in runs] == [0, 1]
    assert runs[0].config.to_dict()["model"] != "micro"


def test_runs_become_a_table_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {"No replay": 0.4, "Uniform replay": 0.2, "SPHERE": 0.1}
    for run in runs_of(table_named("coding"), [0, 1], methods=losses):
        folder: RunFolder = run_folder(run.config, tmp_path)
        with folder.claim(run.config.to_dict()):
            folder.write_results(made_up(losses[run.method]))
    assert main(["table", "coding", "--runs", str(tmp_path), "--seeds", "2", "--json"]) == 0
    rows = {
        (row["method"], row["metric"]): row for row in json.loads(capsys.readouterr().out)["rows"]
    }
    sphere = rows["SPHERE", "mean_forgetting"]
    assert sphere["mean"] == pytest.approx(10.0)
    assert sphere["paired_gain"] == pytest.approx(10.0)
    assert sphere["published"] is None  # these runs are not of the paper's model
    assert sphere["published_gain"] == pytest.approx(4.00 - 3.33)
    assert rows["SPHERE", "final_accuracy"]["mean"] == pytest.approx(100 * (0.7 * 3 + 0.8) / 4)
    assert rows["SPHERE", "worst_task"]["mean"] == pytest.approx(70.0)
    assert rows["No replay", "bwt"]["mean"] == pytest.approx(-40.0)
    assert rows["MIR", "bwt"]["mean"] is None
    plots = tmp_path / "plots"
    words = ["plot", "coding", "--runs", str(tmp_path), "--out", str(plots), "--seeds", "2"]
    assert main(words) == 0
    drawn = sorted(path.name for path in plots.iterdir())
    names = ("accuracy-over-stream", "forgetting", "gains", "reward-and-accuracy")
    assert drawn == [f"{name}.png" for name in names]
    assert all((plots / name).stat().st_size > 1000 for name in drawn)


def test_the_picture_shows_rewards_and_accuracies() -> None:
    runs = [
        FinishedRun(method, "four stages", seed, made_up(lost))
        for method, lost in (("Uniform replay", 0.2), ("SPHERE", 0.1))
        for seed in (0, 1)
    ]
    left, right = reward_figure(runs).axes
    (line,) = [line for line in left.lines if line.get_label() == "SPHERE"]
    steps, rewards = np.asarray(line.get_data(), dtype=float).tolist()
    assert steps == list(range(1, 9))
    assert rewards[:2] == pytest.approx([25, 50])
    (line,) = [line for line in right.lines if line.get_label() == "SPHERE"]
    stages, accuracies = np.asarray(line.get_data(), dtype=float).tolist()
    assert stages == [0, 1, 2, 3, 4]
    assert accuracies[0] == pytest.approx(30)
    assert accuracies[-1] == pytest.approx(72.5)
    assert right.get_xlabel() == "after stage"


def test_rewards_are_averaged_over_a_few_updates() -> None:
    assert smoothed([0.0, 1.0]) == [0.0, 0.5]
    assert smoothed([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])[-1] == pytest.approx(0.2)


def test_runs_on_different_streams_do_not_share_a_panel() -> None:
    other = made_up(0.1) | {"task_ends": [1, 2, 3, 4]}
    runs = [FinishedRun("A", "x", 0, made_up(0.1)), FinishedRun("B", "x", 0, other)]
    with pytest.raises(ValueError, match="end their stages after different updates"):
        reward_figure(runs)


def test_runs_without_rewards_have_no_such_picture() -> None:
    bare = {key: value for key, value in made_up(0.1).items() if key != "reward"}
    with pytest.raises(ValueError, match="none of the 1 runs has rewards by update"):
        reward_figure([FinishedRun("A", "x", 0, bare)])
