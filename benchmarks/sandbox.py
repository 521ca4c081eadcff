"""How many programs a second the sandbox judges, against a fresh pytest for each of them.

The fresh ones run under the same bubblewrap mounts and namespaces (and, for the record, without
any), as many side by side as there are workers. Every figure is a ratio of medians taken in turns.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Benchmark, Cell, at_least, column, named, option, whole
from benchmarks.rendering import Progress
from sphere_replay.errors import UsageError
from sphere_replay.sandbox import Limits, Sandbox, SandboxError, Trial
from sphere_replay.sandbox.isolation import ISOLATIONS, pytest_command
from sphere_replay.sandbox.worker import Worker

FRESH, OPEN, WARM = "fresh pytest, isolated", "fresh pytest, no isolation", "warm workers"

_TESTS = """
import pytest
from solution import count

@pytest.mark.parametrize("size", [0, 1, 2, 10])
def test_sizes(size):
    assert count(["a"] * size) == {**({"a": size} if size else {})}

def test_several():
    assert count("abca") == {"a": 2, "b": 1, "c": 1}

def test_numbers():
    with pytest.raises(TypeError):
        count(5)
"""
_MANY_CALLS = """
def test_many_calls():
    for size in range(2000):
        assert count([size]) == {size: 1}
"""
_PROGRAM = """
def count(items):
    counts = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts  # variant %d
"""

_NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@dataclass(frozen=True)
class Plan(harness.Plan):
    """How many programs, where."""

    workers: int = option(2, "side by side (default: 2)", type=whole(1), metavar="N")
    isolation: str = option(
        "auto", "(default: the best that works here)", choices=("auto", *ISOLATIONS)
    )
    programs: int = 16
    """Programs of a turn."""
    least_rounds: int = 5
    least_seconds: float = 2.0


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """Time the same programs in each way; every verdict is checked on the way."""
    try:
        return _measure(plan)
    except SandboxError as error:
        raise UsageError(str(error)) from error


def _measure(plan: Plan) -> list[Cell]:
    # Every call of a program's function goes from one process to another and back.
    tests = [_TESTS + _MANY_CALLS, *[_TESTS] * (plan.programs - 1)]
    trials = [Trial(_PROGRAM % number, text) for number, text in enumerate(tests)]
    with (
        Sandbox(plan.isolation, workers=plan.workers) as sandbox,
        tempfile.TemporaryDirectory(prefix="sphere-bench-") as place,
        ThreadPoolExecutor(plan.workers) as threads,
    ):
        folders = _write(trials, Path(place))

        def warm() -> None:
            for verdict in sandbox.run_many(trials):
                if not verdict.passed:
                    raise RuntimeError(f"a good program failed: {verdict}")

        def fresh(name: str) -> Callable[[], None]:
            run = _plain if name in ("bubblewrap", "none") else _fresh_worker

            def turn() -> None:
                for _ in threads.map(lambda folder: run(name, folder), folders):
                    pass  # errors come out here

            return turn

        # Programs are other processes: only seconds count.
        timing = plan.race(
            {WARM: warm, FRESH: fresh(sandbox.isolation), OPEN: fresh("none")},
            each=plan.programs,
            clock=time.perf_counter,
        )
        used = {WARM: sandbox.isolation, FRESH: sandbox.isolation, OPEN: "none"}
    return [
        timing.cell(
            *(name, WARM), isolation=used[name], workers=plan.workers, per_second=1 / seconds
        )
        for name, seconds in timing.seconds.items()
    ]


def _write(trials: Sequence[Trial], place: Path) -> list[Path]:
    """A folder for each program, as pytest wants them."""
    place.chmod(0o755)
    folders = []
    for number, trial in enumerate(trials):
        folder = place / str(number)
        folder.mkdir(mode=0o755)
        (folder / "solution.py").write_text(str(trial.program))
        (folder / "test_solution.py").write_text(trial.tests)
        folders.append(folder)
    return folders


def _plain(isolation: str, folder: Path) -> None:
    run = subprocess.run(pytest_command(isolation, folder), capture_output=True, env=_NO_PLUGINS)
    if run.returncode != 0:
        said = (run.stdout + run.stderr).decode("utf-8", "replace")
        raise RuntimeError(f"a fresh pytest failed on a good program:\n{said}")


def _fresh_worker(isolation: str, folder: Path) -> None:
    """Without bubblewrap only a worker can confine itself: one is started for every program."""
    worker = Worker(isolation)
    try:
        program = (folder / "solution.py").read_bytes()
        tests = (folder / "test_solution.py").read_text()
        worker.ask(program, tests, None, Limits())
    finally:
        worker.close()


BENCHMARK = Benchmark(
    title="Speed of the sandbox",
    threads=None,
    plan=Plan(),
    quick=Plan(programs=6, least_rounds=2, least_seconds=0.2),
    measure=measure,
    columns={
        "how": column("figure"),
        "isolation": column("isolation"),
        "side by side": column("workers"),
        "programs/s": column("per_second", by="{:.1f}".format),
        "ms a program": column("seconds", by=lambda seconds: f"{1e3 * seconds:.0f}"),
        "warm is faster by": column("ratio", by="{:.1f}x".format),
    },
    targets=(
        at_least(
            4.0,
            "warm workers against a fresh pytest per program, equal isolation",
            "ratio",
            where=named(FRESH),
        ),
    ),
    legend="""
        One program is a function of five lines and six test nodes, all of which pass; the first
        program of a turn has a seventh, which calls the function 2,000 times. A warm worker
        forks twice for every program, once for the tests, with pytest in memory, and once for
        the program, out of whose reach they are: new namespaces, limits, a filter of system
        calls and a folder for each, and a wire between them. A fresh pytest starts Python under
        the same mounts, for tests and program in one; it has no limits, and its exit code could
        be forged.
    """,
    notes="""
        A fresh run spends most of its time importing pytest and setting up its session, which a
        warm worker does once. What is left is forks, collecting, running, and for every call of
        the program's function a message there and one back.
    """,
)
