"""The pictures: what stands on their axes, what is averaged, and what is left out."""

import math
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.pictured import AFTER_TASK, FORGOTTEN, METHODS, made_results, made_runs
from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.figure_parts import save, styles_of
from sphere_replay.reports.figures import (
    accuracy_figure,
    forgetting_figure,
    lift_figure,
)
from sphere_replay.vision.datasets import load_images
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve


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
    figure = accuracy_figure(made_runs())
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines][: len(METHODS)] == list(METHODS)
    assert len(axes.collections) == len(METHODS)
    assert [text.split("  ")[0] for text in _texts(axes)[-3:]] == list(METHODS)
    assert "task 1" in _texts(axes)
    assert "task 3" in _texts(axes)
    assert axes.get_title(loc="left") == "40% of the training labels are wrong"
    assert figure.get_suptitle().startswith("How well each method")
    assert "mean over 3 seeds" in _caption(figure)
    assert "population standard deviation" in _caption(figure)


def test_the_best_is_thick_and_with_many_methods_has_the_only_band() -> None:
    runs = [
        replace(run, method=f"{run.method} {copy}", results=_ending(run.results, copy))
        for run in made_runs()
        for copy in (1, 2)
    ]
    figure = accuracy_figure(runs, "Split digits")
    (axes,) = figure.axes
    widths = {str(line.get_label()): line.get_linewidth() for line in axes.lines[:6]}
    assert len({width for name, width in widths.items() if not name.endswith("2")}) == 1
    assert max(widths, key=lambda name: widths[name]) == "ER 2"
    assert len(axes.collections) == 1
    assert "of the best alone" in _caption(figure)
    assert figure.get_suptitle().startswith("Split digits: how well")
    bold = [text for text in axes.texts if text.get_fontweight() == "bold"]
    assert [text.get_text().split("  ")[0] for text in bold] == ["ER 2"]


def _ending(results: Mapping[str, Any], copy: int) -> dict[str, Any]:
    """The same results, a little better at the end for the second copy."""
    changed = deepcopy(dict(results))
    changed["accuracy"]["anytime"][-1][1] += 0.01 * copy
    return changed


def test_accuracy_is_the_mean_over_seeds_in_percent() -> None:
    (axes,) = accuracy_figure(made_runs()).axes
    steps, values = _line(axes, "ER")
    assert steps == pytest.approx([4, 8, 10, 12, 16, 20, 24, 28, 30])
    assert values[0] == pytest.approx(41)
    assert values[2] == pytest.approx(80)
    low, high = axes.collections[0].get_datalim(axes.transData).intervaly
    assert (low, high) == pytest.approx((41 - 10 * (2 / 3) ** 0.5, 80))


def test_task_boundaries_are_vertical_lines_between_the_tasks() -> None:
    (axes,) = accuracy_figure(made_runs()).axes
    boundaries = [_places(line)[0] for line in axes.lines[len(METHODS) :]]
    assert boundaries == [[10, 10], [20, 20]]


def test_seeds_whose_tasks_have_other_lengths_are_aligned_at_the_boundaries() -> None:
    runs = [
        FinishedRun("ER", "40%", seed, made_results(ends))
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
    figure = accuracy_figure(made_runs(columns=("clean", "20%", "asymmetric 40%"), seeds=1))
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
    runs = made_runs()
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
    shorter = made_results()
    for name in ("after_task", "task_il"):
        shorter["accuracy"][name].pop()
    shorter["task_ends"].pop()
    shorter["accuracy"]["anytime"] = shorter["accuracy"]["anytime"][:6]
    runs = [FinishedRun("ER", "40%", 0, made_results()), FinishedRun("ER", "40%", 1, shorter)]
    with pytest.raises(ValueError, match=r"'40%' have \[2, 3\] tasks"):
        accuracy_figure(runs)
    with pytest.raises(ValueError, match="split the classes into tasks differently"):
        forgetting_figure(runs)


@pytest.mark.parametrize("unfit", [{}, {"task_ends": [10, 20]}, {"task_ends": [10, 20, 31]}])
def test_task_ends_that_do_not_fit_the_accuracies_are_refused_by_name(
    unfit: dict[str, Any],
) -> None:
    results = {"accuracy": made_results()["accuracy"], **unfit}
    named = (
        rf"ER, 40%, seed 7: its task_ends {re.escape(str(unfit.get('task_ends', [])))} .*3 tasks"
    )
    with pytest.raises(ValueError, match=named):
        accuracy_figure([FinishedRun("ER", "40%", 7, results)])


def test_a_real_run_is_drawn_with_its_real_boundaries(tmp_path: Path) -> None:
    job = VisionJob(resolve("digits", seed=1, evaluate_every=5, limit=250), load_images("digits"))
    for step in range(len(job)):
        job.advance(step)
    whole = math.floor if job.config.drop_last else math.ceil
    lengths = [whole(len(task) / job.config.batch) for task in job.stream.train_indices]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    results = job.results()
    assert results["task_ends"] == ends
    runs = [FinishedRun("ER", "40%", 1, results)]
    (axes,) = accuracy_figure(runs).axes
    assert [_places(line)[0] for line in axes.lines[1:]] == [[end, end] for end in ends[:-1]]
    steps, values = _line(axes, "ER")
    assert steps == [step for step, _ in results["accuracy"]["anytime"]]
    assert values == pytest.approx([100 * value for _, value in results["accuracy"]["anytime"]])
    assert _bars(lift_figure(runs).axes[0]) == [results["replay"]["noisy_lift"]]
    assert save(forgetting_figure(runs), tmp_path / "forgetting.png").is_file()


# --- forgetting ---


def test_forgetting_has_a_dot_per_class_and_method_in_stream_order() -> None:
    figure = forgetting_figure(made_runs())
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
    results = made_results()
    order = [4, 0, 2, 5, 1, 3]
    for name in ("after_task", "task_il"):
        results["accuracy"][name] = [[row[c] for c in order] for row in AFTER_TASK]
    results["accuracy"]["task_of_class"] = [c // 2 for c in order]
    (axes,) = forgetting_figure([FinishedRun("ER", "40%", 0, results)]).axes
    assert _dots(axes)["ER"][1] == pytest.approx(FORGOTTEN)


# --- what was replayed ---


def test_lift_has_a_bar_per_method_and_a_line_at_the_fair_share() -> None:
    figure = lift_figure(made_runs(columns=("20%", "40%")))
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
    runs = [run for run in made_runs(columns=("clean", "20%", "40%")) if run.method != "ER + MIR"]
    for run in runs:
        if run.column == "clean" or (run.method, run.column) == ("ER", "20%"):
            run.results["replay"]["noisy_lift"] = None
    runs.insert(0, FinishedRun("none", "40%", 0, {"accuracy": made_results()["accuracy"]}))
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
