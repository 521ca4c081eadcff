"""What all benchmarks share: plans with options, cells, targets, and the run that reports them."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from benchmarks.rendering import Progress, page, print_report, warn_if_busy
from benchmarks.timing import Timing, describe_machine, fair_clock, interleave, threads
from sphere_replay.errors import UsageError

Cell = dict[str, Any]
"""Figures of one thing that was measured, by name: a row of the table, and an entry of the JSON."""

T = TypeVar("T")


def option(default: T, explanation: str, **settings: Any) -> T:
    """A field of a plan that the command line can set; settings are those of `add_argument`."""
    return field(default=default, metadata={"help": explanation, **settings})


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A type of options: a whole number within bounds."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        value = int(text) if text.isdecimal() else least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {bounds}")
        return value

    return parse


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long; benchmarks add sizes, and options to change them."""

    least_rounds: int = 3
    least_seconds: float = 1.0
    """Rounds go on until they took this long per contestant, on average."""

    def race(
        self, contestants: Mapping[str, Callable[[], object]], *, each: int = 1, **settings: Any
    ) -> Timing:
        """Time contestants in turns, see `interleave`; a call is `each` times what is timed."""
        times = {"least_rounds": self.least_rounds, "least_seconds": self.least_seconds}
        timing = interleave(contestants, **{**times, "clock": fair_clock(), **settings})
        return Timing({name: s / each for name, s in timing.seconds.items()}, timing.rounds)


P = TypeVar("P", bound=Plan)


def _read(cell: Cell, name: str) -> Any:
    """A figure of a cell, as `ratio` or `seconds.sphere`; None if there is none."""
    found: Any = cell
    for part in name.split("."):
        found = found.get(part) if found else None
    return found


def column(name: str, by: Callable[[Any], str] = str) -> Callable[[Cell], str]:
    """A column of the table: a figure as text, empty where a cell has none."""

    def show(cell: Cell) -> str:
        found = _read(cell, name)
        return "" if found is None else by(found)

    return show


TWO_DIGITS: Callable[[float], str] = "{:.2f}".format


@dataclass(frozen=True)
class Target:
    """A promise about a figure of all cells that it is about, and whether a run kept it."""

    relation: str
    worst: Callable[..., float | None]
    """Of several figures the one that is furthest from the promise."""
    required: float
    name: str
    figure: str
    where: Callable[[Cell], bool] = lambda cell: True
    measured: float | None = None
    """The worst figure of a run; None if it was not measured."""

    def judged(self, cells: Iterable[Cell]) -> "Target":
        """The target with what a run measured."""
        figures = [_read(cell, self.figure) for cell in cells if self.where(cell)]
        found = [value for value in figures if value is not None]
        return replace(self, measured=self.worst(found, default=None))

    @property
    def met(self) -> bool | None:
        """Whether the promise was kept; None if it was not put to the test."""
        if self.measured is None:
            return None
        return self.worst([self.measured, self.required]) == self.required

    def to_json(self) -> dict[str, object]:
        """Promise, figure and verdict."""
        names = ("name", "relation", "required", "measured", "met")
        return {name: getattr(self, name) for name in names}


at_least, at_most = partial(Target, "at least", min), partial(Target, "at most", max)


def named(name: str) -> Callable[[Cell], bool]:
    """Cells of this name, for a target."""
    return lambda cell: cell["figure"] == name


@dataclass(frozen=True)
class Benchmark(Generic[P]):
    """What is measured, how it is shown, what is promised about it."""

    title: str
    """Heading of the page it makes."""
    plan: P
    quick: P
    """Small sizes, for a look within seconds."""
    measure: Callable[[P, Progress], Iterable[Cell]]
    columns: Mapping[str, Callable[[Cell], str]]
    """By heading; a column without a figure is left out of the table."""
    targets: tuple[Target, ...]
    legend: str
    """Paragraphs on what the columns mean, and what was left out."""
    notes: str
    """Paragraphs on what dominates."""
    setting: Callable[[P], str] = lambda plan: ""
    """A sentence on the sizes of this run, above the legend."""
    threads: int | None = 1
    """Of torch; None: all that there are."""
    quick_targets: bool = True
    """Whether sizes of a quick run are large enough for the targets."""


@dataclass(frozen=True)
class Report:
    """One run of a benchmark."""

    name: str
    benchmark: Benchmark[Any]
    command: tuple[str, ...]
    machine: dict[str, object]
    setting: str
    cells: tuple[Cell, ...]
    targets: tuple[Target, ...]

    @property
    def table(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Headings and rows, without columns that are empty."""
        columns = self.benchmark.columns.items()
        table = {heading: [show(cell) for cell in self.cells] for heading, show in columns}
        filled = {heading: texts for heading, texts in table.items() if any(texts)}
        return tuple(filled), tuple(zip(*filled.values(), strict=True))

    def to_json(self) -> dict[str, object]:
        """The machine, the figures and the targets."""
        return {
            "benchmark": self.name,
            "command": list(self.command),
            "machine": self.machine,
            "setting": self.setting,
            "cells": list(self.cells),
            "targets": [target.to_json() for target in self.targets],
        }


def add_options(parser: argparse.ArgumentParser, benchmark: Benchmark[Any]) -> None:
    """The options of a benchmark's plan, and those that all benchmarks share."""
    for each in fields(benchmark.plan):
        if each.metadata:
            parser.add_argument(f"--{each.name}", **each.metadata)
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    parser.add_argument("--json", action="store_true", help="print only JSON")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write a page as well")


def run(name: str, benchmark: Benchmark[Any], arguments: argparse.Namespace) -> None:
    """Measure, print, and write the page if one was asked for."""
    target: Path | None = arguments.markdown
    if target is not None and (target.is_dir() or not target.parent.is_dir()):
        raise UsageError(f"--markdown {target}: give a file in a folder that exists")
    base = benchmark.quick if arguments.quick else benchmark.plan
    options = [each.name for each in fields(base) if each.metadata]
    given = {each: getattr(arguments, each) for each in options}
    plan = replace(base, **{each: value for each, value in given.items() if value is not None})
    report = measure(name, benchmark, plan, Progress(), quick=arguments.quick)
    warn_if_busy(report)
    if target is not None:
        target.write_text(page(report, target), encoding="utf-8")
    if arguments.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_report(report)


def measure(
    name: str, benchmark: Benchmark[P], plan: P, progress: Progress, *, quick: bool = False
) -> Report:
    """Run a benchmark, and say what came out."""
    setting = benchmark.setting(plan)
    with threads(benchmark.threads):
        machine = describe_machine()
        cells = tuple(benchmark.measure(plan, progress))
    progress.close()
    base, flags = (benchmark.quick, ("--quick",)) if quick else (benchmark.plan, ())
    promised = benchmark.targets if benchmark.quick_targets or not quick else ()
    return Report(
        name=name,
        benchmark=benchmark,
        command=("python", "-m", "benchmarks", name, *flags, *_changed(plan, base)),
        machine=machine,
        setting=setting,
        cells=cells,
        targets=tuple(target.judged(cells) for target in promised),
    )


def _changed(plan: Plan, base: Plan) -> Iterator[str]:
    """The options that make one plan of another."""
    for each in fields(plan):
        value = getattr(plan, each.name)
        if each.metadata and value != getattr(base, each.name):
            yield f"--{each.name}"
            yield from map(_word, value if isinstance(value, list | tuple) else [value])


def _word(value: object) -> str:
    # Where a folder lies concerns this machine alone.
    return value.name if isinstance(value, Path) else str(value)
