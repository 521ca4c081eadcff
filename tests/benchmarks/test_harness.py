"""Benchmarks are timed fairly, judged by their worst figures, and say what they measured."""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks import harness, timing
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.harness import Benchmark, Cell, at_least, at_most, column, named, option, whole
from benchmarks.rendering import Progress, paragraphs
from benchmarks.timing import Timing
from sphere_replay.errors import UsageError


@dataclass(frozen=True)
class Plan(harness.Plan):
    sizes: tuple[int, ...] = option((7, 8), "sizes", type=whole(2, 9), nargs="+", metavar="M")
    data: Path | None = option(None, "data", type=Path)
    steps: int = 1


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    progress.expect(len(plan.sizes))
    cells = []
    for size in plan.sizes:
        progress(f"size {size}")
        cells.append({"figure": f"m{size}", "seconds": size / 1e3, "peak": {"ours": size}})
    cells[-1]["ratio"] = 1.239
    return cells


FAKE = Benchmark(
    title="Fake",
    plan=Plan(steps=4),
    quick=Plan(steps=2),
    measure=measure,
    columns={
        "what": column("figure"),
        "ms": column("seconds", by=timing.milliseconds),
        "MiB": column("peak.ours", by="{:.1f}".format),
        "ratio": column("ratio", by=harness.TWO_DIGITS),
        "never": column("peak.theirs"),
    },
    targets=(
        at_most(7.5, "MiB of anything", "peak.ours"),
        at_least(4.0, "times faster", "speed", where=named("m7")),
    ),
    setting=lambda plan: f"{plan.steps} steps.",
    legend="""
        Words that are
        explained.

        And more.
    """,
    notes="Size dominates.",
)


def run(*words: str, benchmark: Benchmark[Plan] = FAKE) -> None:
    parser = argparse.ArgumentParser()
    harness.add_options(parser, benchmark)
    harness.run("fake", benchmark, parser.parse_args(words))


def test_contestants_take_turns_after_a_warm_up_that_does_not_count() -> None:
    calls: list[str] = []
    now = itertools.count()
    result = timing.interleave(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        least_rounds=2,
        least_seconds=0,
        clock=lambda: float(next(now)),
    )
    assert calls == ["a", "b"] * 3
    assert result.rounds == 2
    assert result.seconds == {"a": 1.0, "b": 1.0}


def test_rounds_go_on_until_there_was_time_enough_and_the_median_is_taken() -> None:
    durations = iter([1.0, 9.0, 2.0, 1.0, 1.0, 1.0])
    now = [0.0]

    def work() -> None:
        now[0] += next(durations)

    result = timing.interleave(
        {"only": work}, least_seconds=14.0, warm_up=False, clock=lambda: now[0]
    )
    assert result.rounds == 5
    assert result.seconds["only"] == 1.0


def test_a_race_is_as_long_as_planned_and_divides_a_call_by_what_is_in_it() -> None:
    calls: list[str] = []
    now = itertools.count(step=4)

    def clock() -> float:
        return float(next(now))

    race = harness.Plan(least_rounds=2, least_seconds=9.0).race
    found = race({"a": lambda: calls.append("a")}, each=8, warm_up=False, clock=clock)
    assert found == Timing({"a": 0.5}, rounds=3)
    assert calls == ["a"] * 3


def test_a_cell_is_a_time_and_its_ratio_to_another() -> None:
    found = Timing({"a": 3.0, "b": 2.0}, rounds=5).cell("a", "b", size=4)
    times = {"rounds": 5, "seconds": 3.0, "ratio": 1.5}
    assert found == {"figure": "a", "against": "b", **times, "size": 4}
    assert Timing({"a": 3.0}, 1).cell("a", "a", against="itself")["against"] == "itself"


def test_threads_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    with timing.threads(None):
        assert torch.get_num_threads() == timing.available_threads()
    with timing.threads(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before


needs_linux = pytest.mark.skipif(
    not (timing.PROCESS / "clear_refs").exists(), reason="only Linux tells a process its peak"
)

HOLDER = """
import torch

def hold(inputs, mib):
    given = torch.ones(inputs << 18)
    return lambda: given[0] + torch.ones(mib << 18).sum()
"""


@needs_linux
def test_peak_counts_what_the_call_holds_and_not_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holder.py").write_text(HOLDER)
    monkeypatch.syspath_prepend(tmp_path)
    peak = timing.peak_memory("holder:hold", {"inputs": 100, "mib": 64}, {"inputs": 1, "mib": 1})
    if peak is None:
        pytest.skip("this system refuses to reset the high-water mark")
    assert 63 < peak < 68


@needs_linux
def test_failed_measurement_of_memory_shows_the_cause() -> None:
    nobody = {"name": "nobody", "size": 8, "dim": 4}
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1.*KeyError: 'nobody'"):
        timing.peak_memory("benchmarks.allocate:workload", nobody, nobody)


def test_no_peak_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PROCESS", Path("/nowhere"))
    assert timing.peak_memory("any:thing", {}, {}) is None


@pytest.mark.parametrize(
    ("make", "figures", "worst", "met"),
    [
        (at_least, [6.0, 4.0], 4.0, True),
        (at_least, [3.9, 9.0], 3.9, False),
        (at_most, [4.0, 1.0], 4.0, True),
        (at_most, [1.0, 4.1], 4.1, False),
        (at_most, [None], None, None),
        (at_least, [], None, None),
    ],
)
def test_a_target_takes_the_worst_figure(
    make: Callable[..., harness.Target],
    figures: list[float | None],
    worst: float | None,
    met: bool | None,
) -> None:
    cells: list[Cell] = [{"figure": "a", "x": {"y": figure}} for figure in figures]
    other: Cell = {"figure": "b", "x": {"y": -99.0 if make is at_least else 99.0}}
    judged = make(4.0, "t", "x.y", where=named("a")).judged([*cells, other, {"figure": "a"}])
    assert (judged.measured, judged.met) == (worst, met)


def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    run("--quick", "--json", "--sizes", "8", "3")
    report = json.loads(capsys.readouterr().out)
    words = ["--quick", "--sizes", "8", "3"]
    assert report["command"] == ["python", "-m", "benchmarks", "fake", *words]
    assert {"cpu", "threads", "load", "system", "python", "torch"} == set(report["machine"])
    assert report["machine"]["threads"] == 1
    assert report["setting"] == "2 steps."
    assert report["cells"] == [
        {"figure": "m8", "seconds": 0.008, "peak": {"ours": 8}},
        {"figure": "m3", "seconds": 0.003, "peak": {"ours": 3}, "ratio": 1.239},
    ]
    memory, speed = report["targets"]
    assert memory == {
        "name": "MiB of anything",
        "relation": "at most",
        "required": 7.5,
        "measured": 8,
        "met": False,
    }
    assert (speed["measured"], speed["met"]) == (None, None)


def test_page_has_table_machine_targets_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("--markdown", "page.md", "--data", str(tmp_path / "images"))
    head, made, table, *rest = Path("page.md").read_text(encoding="utf-8").split("\n\n")
    assert head == "# Fake"
    assert made.startswith("Made by `python -m benchmarks fake --data images --markdown page.md`")
    assert f"torch {torch.__version__}. Every figure is a ratio" in made
    assert str(tmp_path) not in made
    assert table.splitlines() == [
        "| what | ms | MiB | ratio |",
        "| ---: | ---: | ---: | ---: |",
        "| m7 | 7 | 7.0 |  |",
        "| m8 | 8 | 8.0 | 1.24 |",
    ]
    assert rest == [
        "4 steps.",
        "Words that are explained.",
        "And more.",
        "## Targets",
        "| target | required | measured | met |\n"
        "| ---: | ---: | ---: | ---: |\n"
        "| MiB of anything | at most 7.5 | 8 | no |\n"
        "| times faster | at least 4 | - | not measured |",
        "## What dominates",
        "Size dominates.\n",
    ]


def test_page_does_not_tell_where_it_was_written(tmp_path: Path) -> None:
    run("--markdown", str(tmp_path / "page.md"))
    assert str(tmp_path) not in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_page_in_a_folder_that_does_not_exist_is_refused_before_the_run(tmp_path: Path) -> None:
    def never(plan: Plan, progress: Progress) -> list[Cell]:
        raise AssertionError

    with pytest.raises(UsageError, match="folder that exists"):
        run("--markdown", str(tmp_path / "no" / "page.md"), benchmark=replace(FAKE, measure=never))


@pytest.mark.parametrize("rich", [True, False])
def test_table_is_printed_with_and_without_rich(
    rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich", None)
        monkeypatch.setitem(sys.modules, "rich.box", None)
    run()
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["m8", "8", "8.0", "1.24"] for line in lines)
    assert any("not measured  times faster: at least 4, measured -" in line for line in lines)
    assert any("─" in line or "━" in line for line in lines) is rich


@pytest.mark.parametrize(("load", "warns"), [(1.5, True), (0.5, False), (None, False)])
def test_a_busy_machine_is_mentioned(
    load: float | None,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(timing, "_load", lambda: load)
    run()
    assert ("other work was running" in capsys.readouterr().err) is warns


def test_targets_too_large_for_a_quick_run_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    modest = replace(FAKE, quick_targets=False)
    for words, expected in ((["--quick"], 0), ([], 2)):
        run("--json", *words, benchmark=modest)
        assert len(json.loads(capsys.readouterr().out)["targets"]) == expected


@pytest.mark.parametrize("bad", ["1", "10", "-4", "many"])
def test_bad_numbers_are_refused(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(f"--sizes={bad}")
    assert f"'{bad}' is not a number from 2 to 9" in capsys.readouterr().err


def test_progress_is_silent_at_first_and_then_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("benchmarks.rendering.time.monotonic", lambda: now[0])
    progress = Progress()
    progress.expect(4)
    progress("first")
    progress("second")
    now[0] = 3.0
    progress("third")
    progress.close()
    captured = capsys.readouterr()
    assert captured.err == "2/4  3 s  third\n4/4  3 s  done\n"
    assert captured.out == ""


def test_a_user_s_mistake_is_answered_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scoring", "--markdown", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("benchmarks: --markdown")
    assert error.endswith("give a file in a folder that exists\n")


def test_only_the_benchmark_that_is_named_is_loaded() -> None:
    code = (
        "import sys; from benchmarks.__main__ import BENCHMARKS, main\n"
        "try: main(['augmentation', '--help'])\n"
        "except SystemExit: pass\n"
        "print(*(name for name in BENCHMARKS if f'benchmarks.{name}' in sys.modules))"
    )
    words = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "augmentation"
    assert "--images N" in done.stdout


@pytest.mark.parametrize("name", BENCHMARKS)
def test_make_bench_writes_the_page_that_is_kept(name: str) -> None:
    root = Path(__file__).parents[2]
    path = "docs/performance.md" if name == "allocate" else f"docs/performance-{name}.md"
    assert f"-m benchmarks {name} --markdown {path}\n" in (root / "Makefile").read_text()
    benchmark: Benchmark[harness.Plan] = import_module(f"benchmarks.{name}").BENCHMARK
    page = (root / path).read_text(encoding="utf-8")
    head, made, table, *rest = page.rstrip("\n").split("\n\n")
    assert head == f"# {benchmark.title}"
    assert made.startswith(f"Made by `python -m benchmarks {name} ")
    columns = table.splitlines()[0].strip("| ").split(" | ")
    assert columns == [heading for heading in benchmark.columns if heading in columns]
    notes, legend = paragraphs(benchmark.notes), paragraphs(benchmark.legend)
    at = rest.index("## Targets")
    assert rest[at - len(legend) : at] == legend
    assert rest[at + 2 :] == ["## What dominates", *notes]
    promised = [f"| {t.name} | {t.relation} {t.required:g} " for t in benchmark.targets]
    rows = rest[at + 1].splitlines()[2:]
    assert [row[: len(words)] for row, words in zip(rows, promised, strict=True)] == promised
