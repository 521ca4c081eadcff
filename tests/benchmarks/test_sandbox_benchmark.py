"""The sandbox's benchmark runs the same programs in every way, and compares like with like."""

import pytest

from benchmarks import harness, sandbox
from benchmarks.rendering import Progress
from benchmarks.sandbox import BENCHMARK, FRESH, OPEN, WARM, Plan, measure
from benchmarks.timing import Timing
from sphere_replay.errors import UsageError
from sphere_replay.sandbox import SandboxError
from sphere_replay.sandbox.isolation import ISOLATIONS, missing

TINY = Plan(programs=1, workers=1, least_rounds=1, least_seconds=0)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_each_way_is_timed_under_the_isolation_it_names(isolation: str) -> None:
    if missing(isolation) is not None:
        pytest.skip(f"{isolation}: {missing(isolation)}")
    plan = Plan(isolation=isolation, workers=1, programs=1, least_rounds=1, least_seconds=0)
    cells = {cell["figure"]: cell for cell in measure(plan, Progress())}
    assert {name: cell["isolation"] for name, cell in cells.items()} == {
        WARM: isolation,
        FRESH: isolation,
        OPEN: "none",
    }
    warm, fresh = cells[WARM], cells[FRESH]
    assert warm["ratio"] == 1
    assert fresh["ratio"] == pytest.approx(fresh["seconds"] / warm["seconds"])
    assert fresh["ratio"] > 1  # whatever else the machine does, imports cost something


def test_the_target_is_about_equal_isolation() -> None:
    cells = [
        {"figure": name, "ratio": ratio} for name, ratio in ((WARM, 1.0), (FRESH, 6.0), (OPEN, 4.0))
    ]
    (target,) = BENCHMARK.targets
    judged = target.judged(cells)
    assert (judged.measured, judged.met) == (6.0, True)
    assert target.judged(cells[:1]).met is None


def test_a_program_that_fails_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    if all(missing(name) for name in ISOLATIONS):
        pytest.skip("this machine offers no isolation")
    monkeypatch.setattr(sandbox, "_PROGRAM", "def count(items):\n    return %d\n")
    with pytest.raises(RuntimeError, match="a good program failed"):
        measure(TINY, Progress())


def test_the_report_names_its_command_and_counts_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    if all(missing(name) for name in ISOLATIONS):
        pytest.skip("this machine offers no isolation")
    seconds = {WARM: 0.02, FRESH: 0.2, OPEN: 0.1}
    monkeypatch.setattr(Plan, "race", lambda *_, **settings: Timing(seconds, settings["each"]))
    plan = Plan(workers=3, programs=4)
    report = harness.measure("sandbox", BENCHMARK, plan, Progress())
    assert report.command[4:] == ("--workers", "3")
    warm, fresh, _ = report.cells
    assert (warm["workers"], warm["per_second"], warm["rounds"]) == (3, 50, 4)
    assert (fresh["ratio"], fresh["per_second"]) == (10, 5)
    assert report.table[1][1][-3:] == ("5.0", "200", "10.0x")


def test_a_missing_isolation_is_the_user_s_to_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SandboxError("no isolation here")

    monkeypatch.setattr(sandbox, "Sandbox", refuse)
    with pytest.raises(UsageError, match="no isolation here"):
        measure(TINY, Progress())
