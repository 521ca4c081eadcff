"""How many programs a second the sandbox judges, against a fresh pytest for each of them.

The fresh ones run under the same bubblewrap mounts and namespaces (and, for the record, without
any), as many side by side as there are workers. Every figure is a ratio of medians taken in turns.
"""

import argparse
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import Progress, Report, Target
from benchmarks.timing import describe_machine, interleave
from sphere_replay.errors import UsageError
from sphere_replay.sandbox import Job, Limits, Sandbox, SandboxError
from sphere_replay.sandbox.isolation import ISOLATIONS, pytest_command
from sphere_replay.sandbox.worker import Worker

SUMMARY = "programs a second in the sandbox, against a fresh pytest for each"

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
_PROGRAM = """
def count(items):
    counts = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts  # variant %d
"""


_NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long."""

    programs: int = 16
    """Programs of a turn."""
    workers: int = 2
    least_rounds: int = 5
    least_seconds: float = 2.0


QUICK = Plan(programs=6, least_rounds=2, least_seconds=0.2)


@dataclass(frozen=True)
class Cell:
    """One way to run programs."""

    figure: str
    isolation: str
    workers: int
    rounds: int
    seconds: float
    """Per program."""
    ratio: float
    """How many times as many programs the warm workers run in the same time."""

    @property
    def per_second(self) -> float:
        """Programs a second."""
        return 1 / self.seconds


LEGEND = (
    "One program is a function of five lines and six test nodes, all of which pass. A warm worker "
    "has imported pytest, and forks for every program: new namespaces, limits, filter of system "
    "calls, reports with a nonce, a folder that is removed. A fresh pytest starts Python under the "
    "same mounts; it has no limits, and its exit code could be forged.",
)
NOTES = (
    "A fresh run spends most of its time importing pytest and setting up its session, which a warm "
    "worker does once. What is left is two forks, collecting, and running.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks sandbox`."""
    parser.add_argument(
        "--workers", type=int, metavar="N", help=f"side by side (default: {Plan.workers})"
    )
    parser.add_argument(
        "--isolation",
        choices=("auto", *ISOLATIONS),
        default="auto",
        help="(default: the best that works here)",
    )


def measure(arguments: argparse.Namespace, progress: Progress) -> Report:
    """Run the comparison."""
    plan = QUICK if arguments.quick else Plan()
    command = ["sphere", "bench", "sandbox"] + (["--quick"] if arguments.quick else [])
    if arguments.workers is not None:
        if arguments.workers < 1:
            raise UsageError("--workers takes at least 1")
        plan = Plan(plan.programs, arguments.workers, plan.least_rounds, plan.least_seconds)
        command += ["--workers", str(arguments.workers)]
    if arguments.isolation != "auto":
        command += ["--isolation", arguments.isolation]
    machine = describe_machine()
    progress(0, 1, "programs in turns")
    try:
        cells = measure_cells(plan, arguments.isolation)
    except SandboxError as error:
        raise UsageError(str(error)) from error
    progress(1, 1, "done")
    columns = (
        "how",
        "isolation",
        "side by side",
        "programs/s",
        "ms a program",
        "warm is faster by",
    )
    rows = tuple(
        (
            *(cell.figure, cell.isolation, str(cell.workers), f"{cell.per_second:.1f}"),
            *(f"{1e3 * cell.seconds:.0f}", f"{cell.ratio:.1f}x"),
        )
        for cell in cells
    )
    return Report(
        "sandbox",
        "Speed of the sandbox",
        tuple(command),
        machine,
        tuple({**asdict(cell), "per_second": cell.per_second} for cell in cells),
        columns,
        rows,
        LEGEND,
        NOTES,
        targets(cells),
    )


def measure_cells(plan: Plan, isolation: str = "auto") -> list[Cell]:
    """Time the same programs in each way; every verdict is checked on the way."""
    jobs = [Job(_PROGRAM % number, _TESTS) for number in range(plan.programs)]
    with (
        Sandbox(isolation, workers=plan.workers) as sandbox,
        tempfile.TemporaryDirectory(prefix="sphere-bench-") as place,
        ThreadPoolExecutor(plan.workers) as threads,
    ):
        folders = _write(jobs, Path(place))

        def warm() -> None:
            for verdict in sandbox.run_many(jobs):
                if not verdict.passed:
                    raise RuntimeError(f"a good program failed: {verdict}")

        def fresh(name: str) -> Callable[[], None]:
            run = _plain if name in ("bubblewrap", "none") else _fresh_worker

            def turn() -> None:
                for _ in threads.map(lambda folder: run(name, folder), folders):
                    pass  # errors come out here

            return turn

        timing = interleave(
            {WARM: warm, FRESH: fresh(sandbox.isolation), OPEN: fresh("none")},
            least_rounds=plan.least_rounds,
            least_seconds=plan.least_seconds,
        )
        used = {WARM: sandbox.isolation, FRESH: sandbox.isolation, OPEN: "none"}
        return [
            Cell(
                *(name, used[name], plan.workers, timing.rounds, seconds / plan.programs),
                seconds / timing.seconds[WARM],
            )
            for name, seconds in timing.seconds.items()
        ]


def targets(cells: Sequence[Cell]) -> tuple[Target, ...]:
    """What is promised about these figures."""
    ratios = [cell.ratio for cell in cells if cell.figure == FRESH]
    name = "warm workers against a fresh pytest per program, equal isolation"
    return (Target(name, "at least", 5.0, min(ratios) if ratios else None),)


def _write(jobs: Sequence[Job], place: Path) -> list[Path]:
    """A folder for each program, as pytest wants them."""
    place.chmod(0o755)
    folders = []
    for number, job in enumerate(jobs):
        folder = place / str(number)
        folder.mkdir(mode=0o755)
        (folder / "solution.py").write_text(str(job.program))
        (folder / "test_solution.py").write_text(job.tests)
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
