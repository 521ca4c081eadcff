"""The forest plot: every paired gain of the first measure, and nothing else."""

import json
from pathlib import Path

import pytest

from sphere_replay.cli import main
from sphere_replay.errors import UsageError
from sphere_replay.reports.collection import from_entries
from sphere_replay.reports.forest import draw_forest
from sphere_replay.reports.tables import fill
from sphere_replay.runs.domains import table_named

TABLE = table_named("mnist-best")
METHODS = ("ER, best strength", "ER + calibrated")


def entries(gain: float, seeds: int = 3) -> list[dict[str, object]]:
    return [
        {
            "method": method,
            "column": "40%",
            "seed": seed,
            "metrics": {"tail_accuracy": 0.5 + 0.01 * seed + (gain + 0.001 * seed) * treated},
        }
        for treated, method in enumerate(METHODS)
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(("gain", "color"), [(0.05, "0072b2"), (-0.05, "d55e00"), (0.0, "737373")])
def test_a_line_for_each_gain_in_the_color_of_its_verdict(
    tmp_path: Path, gain: float, color: str
) -> None:
    path = draw_forest(TABLE, fill(TABLE, from_entries(entries(gain))), tmp_path / "gains.svg")
    drawn = path.read_text()
    assert drawn.lower().count(f"stroke: #{color}") >= 1
    others = {"0072b2", "d55e00"} - {color}
    assert not any(f"stroke: #{other}" in drawn.lower() for other in others)


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_equal_pictures_are_equal_files(tmp_path: Path, kind: str) -> None:
    cells = fill(TABLE, from_entries(entries(0.05)))
    first, second = (draw_forest(TABLE, cells, tmp_path / f"{n}.{kind}") for n in "ab")
    assert first.stat().st_size > 1000
    if kind != "svg":  # whose names of clipping paths are drawn at random
        assert first.read_bytes() == second.read_bytes()


def test_what_cannot_be_drawn_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = fill(TABLE, from_entries(entries(0.05, seeds=1)))
    with pytest.raises(UsageError, match="no paired gain with an interval"):
        draw_forest(TABLE, cells, tmp_path / "gains.png")
    with pytest.raises(UsageError, match=r"must end in one of \.png, \.svg, \.pdf"):
        draw_forest(TABLE, fill(TABLE, from_entries(entries(0.05))), tmp_path / "gains.jpeg")
    picture = tmp_path / "gains.png"
    assert main(["table", "cifar10", "--small", "--forest", str(picture), "--json"]) == 0
    assert picture.stat().st_size > 10_000
    assert '"table": "cifar10-small"' in capsys.readouterr().out


def test_columns_can_be_left_out_of_tables_and_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "cifar10", "--small", "--columns", "40%", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["rows"]
    assert {cell["column"] for cell in cells} == {"40%"}
    assert main(["table", "cifar10", "--small", "--columns", "50%"]) == 2
    assert "unknown column '50%'" in capsys.readouterr().err
