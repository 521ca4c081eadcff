"""The example of a loop of one's own: it learns, and a finished run is read, not repeated."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"


def test_a_run_learns_and_goes_on_after_any_task(tmp_path: Path) -> None:
    run = runpy.run_path(str(EXAMPLE))["run"]
    reached = run("sphere-calibrated", 0, tmp_path)
    assert reached > 0.4  # two of ten classes are new: without replay it would stay at 0.2
    written = (tmp_path / "sphere-calibrated-0" / "state.json").stat().st_mtime_ns
    assert run("sphere-calibrated", 0, tmp_path) == reached
    assert (tmp_path / "sphere-calibrated-0" / "state.json").stat().st_mtime_ns == written
