"""Pictures as files: real ones, the same for the same runs, and none where there is no data."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from reports.pictured import made_results, made_runs
from sphere_replay.reports import figure_parts, figures
from sphere_replay.reports.figures import (
    RunSummary,
    accuracy_figure,
    forgetting_figure,
    lift_figure,
    plot_accuracy_over_stream,
    plot_forgetting,
    plot_noisy_lift,
)


@pytest.mark.parametrize("plot", [plot_accuracy_over_stream, plot_forgetting, plot_noisy_lift])
def test_a_picture_is_a_png_of_sensible_size(
    plot: Callable[[list[RunSummary], Path], Path], tmp_path: Path
) -> None:
    path = plot(made_runs(columns=("20%", "40%")), tmp_path / "new folder" / "picture.png")
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
    one, other = (
        plot_noisy_lift(made_runs(), tmp_path / name) for name in ("one.png", "other.png")
    )
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("plot", "missing"),
    [
        (plot_accuracy_over_stream, "anytime accuracies"),
        (plot_forgetting, "two tasks or more"),
        (plot_noisy_lift, "mislabelled memories"),
    ],
)
def test_nothing_to_draw_is_an_error_and_leaves_no_file(
    plot: Callable[[list[RunSummary], Path], Path], missing: str, tmp_path: Path
) -> None:
    single = made_results()["accuracy"]
    single |= {name: single[name][:1] for name in ("after_task", "task_il")} | {"anytime": []}
    for results in ({}, {"accuracy": single, "replay": {"noisy_lift": None}}):
        with pytest.raises(ValueError, match=rf"none of the 1 runs has .*{missing}"):
            plot([RunSummary("ER", "40%", 0, results)], tmp_path / "picture.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("build", [accuracy_figure, forgetting_figure, lift_figure])
def test_a_run_counts_once(build: Callable[[list[RunSummary]], Figure]) -> None:
    with pytest.raises(ValueError, match="two runs of 'ER', '40%', seed 0"):
        build([*made_runs(), RunSummary("ER", "40%", 0, made_results())])


def test_pyplot_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for build in (accuracy_figure, forgetting_figure, lift_figure):
        assert len(build(made_runs()).axes) == 1


def test_the_modules_load_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert runpy.run_path(str(figure_parts.__file__))["HUES"] == figure_parts.HUES
    module = runpy.run_path(str(figures.__file__))
    with pytest.raises(ModuleNotFoundError, match="matplotlib"):
        module["lift_figure"]([RunSummary("ER", "40%", 0, made_results())])
