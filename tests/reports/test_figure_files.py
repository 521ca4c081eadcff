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
from sphere_replay.reports.collection import FinishedRun
from sphere_replay.reports.figure_parts import save
from sphere_replay.reports.figures import (
    accuracy_figure,
    forgetting_figure,
    lift_figure,
)


@pytest.mark.parametrize("build", [accuracy_figure, forgetting_figure, lift_figure])
def test_a_picture_is_a_png_of_sensible_size(
    build: Callable[[list[FinishedRun]], Figure], tmp_path: Path
) -> None:
    figure = build(made_runs(columns=("20%", "40%")))
    path = save(figure, tmp_path / "new folder" / "picture.png")
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
        save(lift_figure(made_runs()), tmp_path / name) for name in ("one.png", "other.png")
    )
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("build", "missing"),
    [
        (accuracy_figure, "anytime accuracies"),
        (forgetting_figure, "two tasks or more"),
        (lift_figure, "mislabelled memories"),
    ],
)
def test_nothing_to_draw_is_an_error(
    build: Callable[[list[FinishedRun]], Figure], missing: str
) -> None:
    single = made_results()["accuracy"]
    single |= {name: single[name][:1] for name in ("after_task", "task_il")} | {"anytime": []}
    for results in ({}, {"accuracy": single, "replay": {"noisy_lift": None}}):
        with pytest.raises(ValueError, match=rf"none of the 1 runs has .*{missing}"):
            build([FinishedRun("ER", "40%", 0, results)])


@pytest.mark.parametrize("build", [accuracy_figure, forgetting_figure, lift_figure])
def test_a_run_counts_once(build: Callable[[list[FinishedRun]], Figure]) -> None:
    with pytest.raises(ValueError, match="two runs of 'ER', '40%', seed 0"):
        build([*made_runs(), FinishedRun("ER", "40%", 0, made_results())])


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
        module["lift_figure"]([FinishedRun("ER", "40%", 0, made_results())])
