"""How a run of a benchmark is shown: a page, a printed table, and progress on the way."""

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Report

_SILENT_SECONDS = 2.0
_BAR_WIDTH = 24
_WIDTH_OF_FILES = 120

Rows = tuple[tuple[str, ...], ...]


class Progress:
    """A bar on standard error once a run takes over two seconds; lines if no one is watching."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._watched = sys.stderr.isatty()
        self._shown = False
        self.expect(1)

    def expect(self, total: int) -> None:
        """So many things follow."""
        self._done, self._total = 0, total

    def __call__(self, label: str) -> None:
        """The next thing begins."""
        self.show(self._done, self._total, label)
        self._done += 1

    def show(self, done: int, total: int, label: str) -> None:
        """Tell how far the run is."""
        seconds = time.monotonic() - self._start
        if seconds < _SILENT_SECONDS:
            return
        text = f"{done}/{total}  {seconds:.0f} s  {label}"
        if self._watched:
            filled = _BAR_WIDTH * done // total
            text = f"\r\x1b[K[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {text}"
        print(text, end="" if self._watched else "\n", file=sys.stderr, flush=True)
        self._shown = True

    def close(self) -> None:
        """All is done; leaves the cursor on a fresh line."""
        self.show(self._total, self._total, "done")
        if self._watched and self._shown:
            print(file=sys.stderr)


def page(report: "Report", path: Path) -> str:
    """The report as Markdown."""
    shown = path.name if path.is_absolute() else str(path)
    benchmark = report.benchmark
    parts = [
        f"# {benchmark.title}",
        f"Made by `{shlex.join([*report.command, '--markdown', shown])}` on {_machine(report)}. "
        "Every figure is a ratio within one run, apart from milliseconds and MiB, which say how "
        "large things are here.",
        _markdown_table(*report.table),
        *paragraphs(report.setting),
        *paragraphs(benchmark.legend),
        "## Targets",
        _markdown_table(("target", "required", "measured", "met"), _targets(report)),
        "## What dominates",
        *paragraphs(benchmark.notes),
    ]
    return "\n\n".join(parts) + "\n"


def paragraphs(text: str) -> list[str]:
    """A text without the line breaks and indents that it has in code."""
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def print_report(report: "Report") -> None:
    """The table and the targets, on standard output."""
    columns, rows = report.table
    print(f"{shlex.join(report.command)} on {_machine(report)}")
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(_plain_table(columns, rows))
    else:
        table = Table(box=SIMPLE_HEAD)
        for column in columns:
            table.add_column(column, justify="right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        # Without a terminal rich assumes a narrow one, and would break figures.
        Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES).print(table)
    for name, required, measured, met in _targets(report):
        print(f"{met:>12}  {name}: {required}, measured {measured}")


def warn_if_busy(report: "Report") -> None:
    """Threads that wait for each other suffer most from other work: say so if there was any."""
    load, threads = report.machine["load"], report.machine["threads"]
    if isinstance(load, float) and isinstance(threads, int) and load > threads / 2:
        print(
            f"benchmarks: the load was {load} on {threads} threads before the run started: other "
            "work was running, and these figures may not hold; repeat them on an idle machine",
            file=sys.stderr,
        )


def _markdown_table(columns: tuple[str, ...], rows: Rows) -> str:
    lines = [columns, tuple("---:" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain_table(columns: tuple[str, ...], rows: Rows) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (columns, *rows)
    )


def _targets(report: "Report") -> Rows:
    return tuple(
        (
            target.name,
            f"{target.relation} {target.required:g}",
            "-" if target.measured is None else f"{target.measured:.3g}",
            {True: "yes", False: "no", None: "not measured"}[target.met],
        )
        for target in report.targets
    )


def _machine(report: "Report") -> str:
    machine = report.machine
    return (
        f"{machine['cpu']}, {machine['threads']} threads (load {machine['load']}), "
        f"{machine['system']}, Python {machine['python']}, torch {machine['torch']}"
    )
