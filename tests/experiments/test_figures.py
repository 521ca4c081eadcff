"""The pictures: what stands on their axes, what is left out, and that files are real pictures."""

import copy
import math
import runpy
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from sphere_replay.experiments import figures
from sphere_replay.experiments.figures import (
    HUES,
    RunSummary,
    accuracy_figure,
    forgetting_figure,
    lift_figure,
    plot_accuracy_over_stream,
    plot_forgetting_per_class,
    plot_noisy_lift,
    spread_apart,
    styles_of,
    task_ends,
)
from sphere_replay.experiments.records import AccuracyRecord
from sphere_replay.vision.datasets import load_images
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve

METHODS = ("ER", "ER + MIR", "ER + SPHERE")
AFTER_TASK: list[list[float | None]] = [
    [0.9, 0.7, None, None, None, None],
    [0.5, 0.8, 1.0, 0.6, None, None],
    [0.4, 0.2, 0.7, 0.9, 1.0, 1.0],
]
FORGOTTEN = (50, 60, 30, 0)
"""In points, from `AFTER_TASK`: best minus last, for the classes of the first two tasks."""


def _results(ends: tuple[int, int, int] = (10, 20, 30), shift: float = 0.0) -> dict[str, Any]:
    """Two classes a task; evaluations every 4 steps and, exactly, at the ends of the tasks."""
    values = dict.fromkeys(range(4, ends[-1], 4), 0.31 + shift)
    for task, end in enumerate(ends):
        seen = [value for value in AFTER_TASK[task] if value is not None]
        values[end] = sum(seen) / len(seen)
    return {
        "accuracy": {
            "after_task": copy.deepcopy(AFTER_TASK),
            "task_il": copy.deepcopy(AFTER_TASK),
            "task_of_class": [0, 0, 1, 1, 2, 2],
            "counts": [5] * 6,
            "anytime": [[step, values[step]] for step in sorted(values)],
        },
        "replay": {"noisy_lift": 1.2 + shift},
    }


def _runs(columns: tuple[str, ...] = ("40%",), seeds: int = 3) -> list[RunSummary]:
    return [
        RunSummary(method, column, seed, _results(shift=0.1 * seed))
        for method in METHODS
        for column in columns
        for seed in range(seeds)
    ]


def _texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def _caption(figure: Figure) -> str:
    return " ".join(figure.get_supxlabel().split())


def _places(line: Line2D) -> tuple[list[float], list[float]]:
    x, y = np.asarray(line.get_data(), dtype=float).tolist()
    return x, y


def _line(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return _places(line)


def _dots(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    found = {}
    for dots in axes.collections:
        if dots.get_label() in METHODS:
            x, y = np.asarray(dots.get_offsets(), dtype=float).T.tolist()
            found[str(dots.get_label())] = (x, y)
    return found


def _bars(axes: Axes) -> list[float]:
    bars = [bar for group in axes.containers if isinstance(group, BarContainer) for bar in group]
    return [bar.get_width() for bar in bars]


# --- the accuracy along the stream ---


def test_accuracy_has_a_labelled_line_and_a_band_per_method() -> None:
    figure = accuracy_figure(_runs())
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines][: len(METHODS)] == list(METHODS)
    assert len(axes.collections) == len(METHODS)
    assert [text.split("  ")[0] for text in _texts(axes)[-3:]] == list(METHODS)
    assert "task 1" in _texts(axes)
    assert "task 3" in _texts(axes)
    assert axes.get_title(loc="left") == "40% of the training labels are wrong"
    assert figure.get_suptitle().startswith("Each line shows")
    assert "mean over 3 seeds" in _caption(figure)
    assert "population standard deviation" in _caption(figure)


def test_accuracy_is_the_mean_over_seeds_in_percent() -> None:
    (axes,) = accuracy_figure(_runs()).axes
    steps, values = _line(axes, "ER")
    assert steps == pytest.approx([4, 8, 10, 12, 16, 20, 24, 28, 30])
    assert values[0] == pytest.approx(41)
    assert values[2] == pytest.approx(80)
    low, high = axes.collections[0].get_datalim(axes.transData).intervaly
    assert (low, high) == pytest.approx((41 - 10 * (2 / 3) ** 0.5, 80))


def test_task_boundaries_are_vertical_lines_between_the_tasks() -> None:
    (axes,) = accuracy_figure(_runs()).axes
    boundaries = [_places(line)[0] for line in axes.lines[len(METHODS) :]]
    assert boundaries == [[10, 10], [20, 20]]


def test_seeds_whose_tasks_have_other_lengths_are_aligned_at_the_boundaries() -> None:
    runs = [
        RunSummary("ER", "40%", seed, _results(ends))
        for seed, ends in enumerate([(10, 20, 30), (14, 22, 34)])
    ]
    (axes,) = accuracy_figure(runs).axes
    steps, values = _line(axes, "ER")
    # Both seeds have 80% at the end of the first task, at step 10 and at step 14.
    assert values[[round(step, 6) for step in steps].index(12)] == pytest.approx(80)
    assert max(values) == pytest.approx(80)
    assert steps[-1] == pytest.approx(32)
    assert steps[0] == pytest.approx(4 * 12 / 10)  # the seed evaluated first waits for the other


def test_columns_become_panels_and_a_single_seed_has_no_band() -> None:
    figure = accuracy_figure(_runs(columns=("clean", "20%", "asymmetric 40%"), seeds=1))
    shown = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title(loc="left") for axes in shown] == [
        "clean",
        "20% of the training labels are wrong",
        "asymmetric 40%",
    ]
    assert all(not axes.collections for axes in shown)
    assert "1 seed," in _caption(figure)
    assert "Band" not in _caption(figure)


def test_a_run_without_anytime_points_is_left_out_and_named() -> None:
    runs = _runs()
    for run in runs:
        if run.method == "ER + MIR":
            run.results["accuracy"]["anytime"].clear()
    runs[0].results["accuracy"]["after_task"].clear()
    figure = accuracy_figure(runs)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines][:2] == ["ER", "ER + SPHERE"]
    assert "Without data: ER + MIR (40%)." in _caption(figure)
    assert "mean over 2 to 3 seeds" in _caption(figure)


def test_runs_on_streams_of_other_lengths_are_not_averaged() -> None:
    shorter = _results()
    for name in ("after_task", "task_il"):
        shorter["accuracy"][name].pop()
    shorter["accuracy"]["anytime"] = shorter["accuracy"]["anytime"][:6]
    runs = [RunSummary("ER", "40%", 0, _results()), RunSummary("ER", "40%", 1, shorter)]
    with pytest.raises(ValueError, match=r"'40%' have \[2, 3\] tasks"):
        accuracy_figure(runs)
    with pytest.raises(ValueError, match="split the classes into tasks differently"):
        forgetting_figure(runs)


def test_anytime_points_of_another_run_are_refused_by_name() -> None:
    results = _results()
    results["accuracy"]["anytime"] = [[step, 0.01] for step in range(4, 32, 4)]
    with pytest.raises(ValueError, match="ER, 40%, seed 7: no anytime accuracy equals"):
        accuracy_figure([RunSummary("ER", "40%", 7, results)])


# --- where tasks end ---


def test_task_ends_are_found_where_accuracy_stands_still() -> None:
    results = _results(ends=(10, 20, 30))
    points = dict(results["accuracy"]["anytime"])
    # Saturated before the end of task 1, and by chance the same later on; task 2 ends on the grid.
    points |= {4: 0.8, 8: 0.8, 24: 0.8, 16: points[20]}
    results["accuracy"]["anytime"] = sorted(points.items())
    assert task_ends(AccuracyRecord.from_dict(results["accuracy"])) == (10, 20, 30)


def test_task_ends_without_evaluations_in_between() -> None:
    results = _results()
    results["accuracy"]["anytime"] = [[9, 0.5], [18, 0.5], [31, 0.5]]
    assert task_ends(AccuracyRecord.from_dict(results["accuracy"])) == (9, 18, 31)


def test_a_real_run_is_drawn_with_its_real_boundaries(tmp_path: Path) -> None:
    job = VisionJob(resolve("digits", seed=1, evaluate_every=5, limit=250), load_images("digits"))
    for step in range(len(job)):
        job.advance(step)
    lengths = [math.ceil(len(task) / job.config.batch) for task in job.stream.train_indices]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    results = job.results()
    assert list(task_ends(AccuracyRecord.from_dict(results["accuracy"]))) == ends
    runs = [RunSummary("ER", "40%", 1, results)]
    steps, values = _line(accuracy_figure(runs).axes[0], "ER")
    assert steps == [step for step, _ in results["accuracy"]["anytime"]]
    assert values == pytest.approx([100 * value for _, value in results["accuracy"]["anytime"]])
    assert _bars(lift_figure(runs).axes[0]) == [results["replay"]["noisy_lift"]]
    assert plot_forgetting_per_class(runs, tmp_path / "forgetting.png").is_file()


# --- forgetting ---


def test_forgetting_has_a_dot_per_class_and_method_in_stream_order() -> None:
    figure = forgetting_figure(_runs())
    (axes,) = figure.axes
    dots = _dots(axes)
    assert list(dots) == list(METHODS)
    for places, heights in dots.values():
        assert heights == pytest.approx(FORGOTTEN)
        assert [round(place) for place in places] == [0, 1, 2, 3]
    assert dots["ER"][0] < dots["ER + MIR"][0] < dots["ER + SPHERE"][0]
    assert [text for text in _texts(axes) if text.startswith("task")] == ["task 1", "task 2"]
    assert "ER + SPHERE  35" in _texts(axes)
    assert "last task is left out" in _caption(figure)


def test_forgetting_follows_the_stream_whatever_the_ids_of_the_classes() -> None:
    results = _results()
    order = [4, 0, 2, 5, 1, 3]
    for name in ("after_task", "task_il"):
        results["accuracy"][name] = [[row[c] for c in order] for row in AFTER_TASK]
    results["accuracy"]["task_of_class"] = [c // 2 for c in order]
    (axes,) = forgetting_figure([RunSummary("ER", "40%", 0, results)]).axes
    assert _dots(axes)["ER"][1] == pytest.approx(FORGOTTEN)


# --- what was replayed ---


def test_lift_has_a_bar_per_method_and_a_line_at_the_fair_share() -> None:
    figure = lift_figure(_runs(columns=("20%", "40%")))
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert _bars(axes) == pytest.approx([1.3] * 3)
        assert [1, 1] in [_places(line)[0] for line in axes.lines]
        assert "fair share" in _texts(axes)
        assert _texts(axes).count("1.30") == 3
        whiskers = [bars for bars in axes.collections if isinstance(bars, LineCollection)]
        widths = [np.ptp(bars.get_segments()[0], axis=0)[0] for bars in whiskers]
        assert widths == pytest.approx([2 * 0.1 * (2 / 3) ** 0.5] * 3)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(METHODS)


def test_lift_says_what_has_no_data_and_keeps_the_colors_of_the_rest() -> None:
    runs = [run for run in _runs(columns=("clean", "20%", "40%")) if run.method != "ER + MIR"]
    for run in runs:
        if run.column == "clean" or (run.method, run.column) == ("ER", "20%"):
            run.results["replay"]["noisy_lift"] = None
    runs.insert(0, RunSummary("none", "40%", 0, {"accuracy": _results()["accuracy"]}))
    figure = lift_figure(runs)
    assert [axes.get_title(loc="left")[:3] for axes in figure.axes] == ["40%", "20%"]
    assert "no data" in _texts(figure.axes[1])
    assert "Without data: none (40%), ER (20%), all of clean." in _caption(figure)
    bars = [group for group in figure.axes[0].containers if isinstance(group, BarContainer)]
    styles = styles_of(["none", "ER", "ER + SPHERE"])
    assert [bar[0].get_facecolor()[:3] for bar in bars] == [
        styles["ER"].color,
        styles["ER + SPHERE"].color,
    ]


# --- styles and labels ---


def test_sphere_has_the_hue_of_its_host_in_a_stronger_tone() -> None:
    styles = styles_of(["ER", "ER + MIR", "ER + SPHERE", "DER++ + SPHERE", "DER++"])
    assert styles["ER + SPHERE"].color == to_rgb(HUES[0])
    assert styles["ER + MIR"].color == to_rgb(HUES[1])
    assert styles["DER++ + SPHERE"].color == to_rgb(HUES[2])
    for host in ("ER", "DER++"):
        strong, pale = styles[f"{host} + SPHERE"], styles[host]
        assert (strong.line, pale.line) == ("-", "--")
        parts = zip(strong.color, pale.color, strict=True)
        assert [1 - light for _, light in parts] == pytest.approx(
            [(1 - 0.36) * (1 - part) for part in strong.color]
        )
    by_command = styles_of(["er/uniform", "er/mir", "er/sphere", "der-pp/sphere", "der-pp/uniform"])
    assert list(by_command.values()) == list(styles.values())


def test_styles_of_many_methods_differ() -> None:
    hosts = ["none", "er", "er-ace", "der-pp", "gdumb", "xder", "puridiver", "abs"]
    methods = [f"{host}/{select}" for host in hosts for select in ("uniform", "sphere")]
    methods += [f"er/sphere-{name}" for name in ("identity", "consensus", "permuted", "no-floor")]
    styles = styles_of(methods + methods)
    assert list(styles) == methods
    assert len(set(styles.values())) == len(methods)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.floats(0.1, 20))
def test_labels_are_apart_in_order_and_moved_together(values: list[float], gap: float) -> None:
    placed = spread_apart(values, gap)
    order = sorted(range(len(values)), key=lambda i: values[i])
    for lower, upper in pairwise(order):
        assert placed[upper] - placed[lower] >= gap - 1e-9
    assert sum(placed) == pytest.approx(sum(values), abs=1e-6)


def test_labels_that_do_not_collide_stay_where_they_are() -> None:
    assert spread_apart([50, 10, 12], 5) == pytest.approx([50, 8.5, 13.5])


# --- files and errors ---


@pytest.mark.parametrize(
    "plot", [plot_accuracy_over_stream, plot_forgetting_per_class, plot_noisy_lift]
)
def test_a_picture_is_a_png_of_sensible_size(
    plot: Callable[[list[RunSummary], Path], Path], tmp_path: Path
) -> None:
    path = plot(_runs(columns=("20%", "40%")), tmp_path / "new folder" / "picture.png")
    assert path == tmp_path / "new folder" / "picture.png"
    assert path.stat().st_size > 10_000
    with Image.open(path) as picture:
        picture.verify()
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert all(500 < side < 3000 for side in picture.size)
        assert len(set(picture.convert("RGB").resize((200, 200)).get_flattened_data())) > 20
    assert [file.name for file in path.parent.iterdir()] == ["picture.png"]


def test_equal_runs_give_equal_files(tmp_path: Path) -> None:
    one, other = (plot_noisy_lift(_runs(), tmp_path / name) for name in ("one.png", "other.png"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("plot", "missing"),
    [
        (plot_accuracy_over_stream, "anytime accuracies"),
        (plot_forgetting_per_class, "two tasks or more"),
        (plot_noisy_lift, "mislabelled memories"),
    ],
)
def test_nothing_to_draw_is_an_error_and_leaves_no_file(
    plot: Callable[[list[RunSummary], Path], Path], missing: str, tmp_path: Path
) -> None:
    single = _results()["accuracy"]
    single |= {name: single[name][:1] for name in ("after_task", "task_il")} | {"anytime": []}
    for results in ({}, {"accuracy": single, "replay": {"noisy_lift": None}}):
        with pytest.raises(ValueError, match=rf"none of the 1 runs has .*{missing}"):
            plot([RunSummary("ER", "40%", 0, results)], tmp_path / "picture.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("build", [accuracy_figure, forgetting_figure, lift_figure])
def test_a_run_counts_once(build: Callable[[list[RunSummary]], Figure]) -> None:
    with pytest.raises(ValueError, match="two runs of 'ER', '40%', seed 0"):
        build([*_runs(), RunSummary("ER", "40%", 0, _results())])


def test_pyplot_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for build in (accuracy_figure, forgetting_figure, lift_figure):
        assert len(build(_runs()).axes) == 1


def test_the_module_loads_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    module = runpy.run_path(str(figures.__file__))
    with pytest.raises(ModuleNotFoundError, match="matplotlib"):
        module["lift_figure"]([RunSummary("ER", "40%", 0, _results())])
