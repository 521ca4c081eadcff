"""The example runs as it stands, and shows what it is there to show."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "continual_sft.py"


def test_replay_keeps_the_first_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--steps", "60"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert lines[0].split()[:4] == ["accuracy", "task", "1", "before"]
    shares = {
        line[:16].strip(): [int(cell.rstrip("%")) for cell in line[16:].split()]
        for line in lines[1:]
    }
    without, sphere = shares["no replay"], shares["SPHERE"]
    assert min(without[0], sphere[0]) > 80  # the first task was learnt
    assert min(without[2], sphere[2]) > 80  # and so was the second
    assert sphere[1] > without[1] + 30
