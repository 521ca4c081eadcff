"""Measure how fast the library is on this machine, as ratios that travel to others.

Examples:
  python -m benchmarks allocate --quick
  python -m benchmarks allocate --sizes 2000 4000 --dims 512
  python -m benchmarks allocate --markdown docs/performance.md
  python -m benchmarks train --data DIR --markdown docs/performance-train.md
  python -m benchmarks hosts --markdown docs/performance-hosts.md
  python -m benchmarks scoring --markdown docs/performance-scoring.md
  python -m benchmarks instruct --markdown docs/performance-instruct.md
  python -m benchmarks coding --markdown docs/performance-coding.md
"""

import argparse
import importlib
import json
import shlex
import sys
import time
from pathlib import Path

from benchmarks import Report, Target
from sphere_replay.errors import UsageError

SUMMARY = "measure how fast the library is on this machine"

BENCHMARKS: tuple[str, ...] = (
    "allocate",
    "train",
    "hosts",
    "instruct",
    "scoring",
    "augmentation",
    "sandbox",
    "coding",
)
"""Names of modules in `benchmarks`; a new one is one module and one word here."""

_BAR_AFTER_SECONDS = 2.0
_BAR_WIDTH = 24
_WIDTH_OF_FILES = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand per benchmark, with the options that all of them share."""
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name in BENCHMARKS:
        module = importlib.import_module(f"benchmarks.{name}")
        benchmark = benchmarks.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        module.add_arguments(benchmark)
        benchmark.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
        benchmark.add_argument("--json", action="store_true", help="print only JSON")
        benchmark.add_argument("--markdown", metavar="FILE", type=Path, help="write a page as well")
        benchmark.set_defaults(measure=module.measure)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, and write the page if one was asked for."""
    page: Path | None = arguments.markdown
    if page is not None and (page.is_dir() or not page.parent.is_dir()):
        raise UsageError(f"--markdown {page}: give a file in a folder that exists")
    progress = _Progress()
    report: Report = arguments.measure(arguments, progress)
    progress.close()
    _warn_if_busy(report)
    if page is not None:
        page.write_text(render_markdown(report, page), encoding="utf-8")
    if arguments.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        _print_table(report)
    return 0


def render_markdown(report: Report, page: Path) -> str:
    """The report as a page."""
    shown = page.name if page.is_absolute() else str(page)
    parts = [
        f"# {report.title}",
        f"Made by `{shlex.join([*report.command, '--markdown', shown])}` on {_machine(report)}. "
        "Every figure is a ratio within one run, apart from milliseconds and MiB, which say how "
        "large things are here.",
        _markdown_table(report.columns, report.rows),
        *report.legend,
        "## Targets",
        _markdown_table(("target", "required", "measured", "met"), _target_rows(report)),
        "## What dominates",
        *report.notes,
    ]
    return "\n\n".join(parts) + "\n"


def _markdown_table(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    lines = [columns, tuple("---:" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _print_table(report: Report) -> None:
    print(f"{shlex.join(report.command)} on {_machine(report)}")
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(_plain_table(report.columns, report.rows))
    else:
        table = Table(box=SIMPLE_HEAD)
        for column in report.columns:
            table.add_column(column, justify="right", overflow="fold")
        for row in report.rows:
            table.add_row(*row)
        # Without a terminal rich assumes a narrow one, and would break figures.
        Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES).print(table)
    for name, required, measured, met in _target_rows(report):
        print(f"{met:>12}  {name}: {required}, measured {measured}")


def _plain_table(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (columns, *rows)
    )


def _target_rows(report: Report) -> tuple[tuple[str, ...], ...]:
    return tuple(_target_row(target) for target in report.targets)


def _target_row(target: Target) -> tuple[str, str, str, str]:
    verdict = {True: "yes", False: "no", None: "not measured"}[target.met]
    measured = "-" if target.measured is None else f"{target.measured:.3g}"
    return target.name, f"{target.relation} {target.required:g}", measured, verdict


def _machine(report: Report) -> str:
    machine = report.machine
    return (
        f"{machine['cpu']}, {machine['threads']} threads (load {machine['load']}), "
        f"{machine['system']}, "
        f"Python {machine['python']}, torch {machine['torch']}"
    )


def _warn_if_busy(report: Report) -> None:
    """Threads that wait for each other suffer most from other work: say so if there was any."""
    load, threads = report.machine["load"], report.machine["threads"]
    if isinstance(load, float) and isinstance(threads, int) and load > threads / 2:
        print(
            f"sphere: the load was {load} on {threads} threads before the run started: other work "
            "was running, and these figures may not hold; repeat them on an idle machine",
            file=sys.stderr,
        )


class _Progress:
    """A bar on standard error once a run takes over two seconds; lines if no one is watching."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._watched = sys.stderr.isatty()
        self._shown = False

    def __call__(self, done: int, total: int, label: str) -> None:
        seconds = time.monotonic() - self._start
        if seconds < _BAR_AFTER_SECONDS:
            return
        text = f"{done}/{total}  {seconds:.0f} s  {label}"
        if self._watched:
            filled = _BAR_WIDTH * done // total
            text = f"\r\x1b[K[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {text}"
        print(text, end="" if self._watched else "\n", file=sys.stderr, flush=True)
        self._shown = True

    def close(self) -> None:
        """Leave the cursor on a fresh line."""
        if self._watched and self._shown:
            print(file=sys.stderr)


def main() -> int:
    """Run a benchmark by name; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except UsageError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
