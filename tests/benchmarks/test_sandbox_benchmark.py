"""The sandbox's benchmark runs the same programs in every way, and compares like with like."""

import argparse

import pytest

from benchmarks import sandbox
from benchmarks.sandbox import FRESH, OPEN, WARM, Cell, Plan, measure_cells, targets
from sphere_replay.errors import UsageError
from sphere_replay.sandbox.isolation import ISOLATIONS, missing

TINY = Plan(programs=1, workers=1, least_rounds=1, least_seconds=0)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_each_way_is_timed_under_the_isolation_it_names(isolation: str) -> None:
    if missing(isolation) is not None:
        pytest.skip(f"{isolation}: {missing(isolation)}")
    cells = {cell.figure: cell for cell in measure_cells(TINY, isolation)}
    assert {name: cell.isolation for name, cell in cells.items()} == {
        WARM: isolation,
        FRESH: isolation,
        OPEN: "none",
    }
    assert cells[WARM].ratio == 1
    assert cells[FRESH].ratio == pytest.approx(cells[FRESH].seconds / cells[WARM].seconds)
    assert cells[FRESH].ratio > 1  # whatever else the machine does, imports cost something


def test_the_target_is_about_equal_isolation() -> None:
    cells = [
        Cell(WARM, "bubblewrap", 2, 3, 0.02, 1.0),
        Cell(FRESH, "bubblewrap", 2, 3, 0.12, 6.0),
        Cell(OPEN, "none", 2, 3, 0.08, 4.0),
    ]
    (target,) = targets(cells)
    assert (target.measured, target.met) == (6.0, True)
    assert targets(cells[:1])[0].met is None
    assert cells[0].per_second == 50


def test_a_program_that_fails_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    if all(missing(name) for name in ISOLATIONS):
        pytest.skip("this machine offers no isolation")
    monkeypatch.setattr(sandbox, "_PROGRAM", "def count(items):\n    return %d\n")
    with pytest.raises(RuntimeError, match="a good program failed"):
        measure_cells(TINY)


def test_the_report_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Cell(WARM, "landlock", 3, 2, 0.02, 1.0), Cell(FRESH, "landlock", 3, 2, 0.2, 10.0)]
    plans: list[Plan] = []

    def measured(plan: Plan, isolation: str) -> list[Cell]:
        plans.append(plan)
        return cells

    monkeypatch.setattr(sandbox, "measure_cells", measured)
    parser = argparse.ArgumentParser()
    sandbox.add_arguments(parser)
    arguments = parser.parse_args(["--workers", "3", "--isolation", "landlock"])
    arguments.quick = True
    report = sandbox.measure(arguments, lambda done, total, label: None)
    words = "sphere bench sandbox --quick --workers 3 --isolation landlock"
    assert " ".join(report.command) == words
    assert plans[0].workers == 3
    assert report.rows[1][-1] == "10.0x"
    assert report.to_json()["cells"] == [
        {**vars(cell), "per_second": cell.per_second} for cell in cells
    ]
    arguments.workers = 0
    with pytest.raises(UsageError, match="at least 1"):
        sandbox.measure(arguments, lambda done, total, label: None)
