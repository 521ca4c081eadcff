"""The example runs as it stands, and shows what it is there to show."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "grpo_with_replay.py"


def test_replay_keeps_the_first_family(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert lines[0].split() == ["solved", "first", "family", "second", "family"]
    shares = {
        line[:16].strip(): [int(cell.rstrip("%")) for cell in line[16:].split()]
        for line in lines[1:]
    }
    assert shares["SPHERE"][0] > shares["no replay"][0] + 30
    assert shares["SPHERE"][1] > 0  # and it has learnt the second as well


def test_three_lines_make_the_difference() -> None:
    marked = [line for line in EXAMPLE.read_text("utf-8").splitlines() if "# REPLAY" in line]
    assert len(marked) == 3
