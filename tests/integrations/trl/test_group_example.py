"""The example runs as it stands, and shows what it is there to show."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "grpo_with_replay.py"


def test_replay_keeps_the_first_family(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--seeds", "1"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("replay "))
    header, *rows = [line for line in lines[start:] if not line.startswith("{")][:5]
    assert header.split()[:3] == ["replay", "first", "second"]
    shares = {row.split()[0]: [int(cell.rstrip("%")) for cell in row.split()[1:3]] for row in rows}
    assert list(shares) == ["uniform", "none", "mir", "sphere"]
    assert shares["sphere"][0] > shares["none"][0] + 20  # two problems of eight
    assert shares["sphere"][1] > 0  # and it has learnt the second as well


def test_three_lines_make_the_difference() -> None:
    marked = [line for line in EXAMPLE.read_text("utf-8").splitlines() if "# REPLAY" in line]
    assert len(marked) == 3
