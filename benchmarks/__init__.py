"""Benchmarks, and what each of them hands to `python -m benchmarks`: a report with its targets.

A benchmark is one module with SUMMARY, add_arguments(parser) and
measure(arguments, progress) -> Report; its figures are ratios of times taken in the same run,
because seconds of one machine say nothing about another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Progress = Callable[[int, int, str], None]
"""Told (steps done, steps altogether, what comes next)."""


@dataclass(frozen=True)
class Target:
    """A promise about a figure, and whether this run kept it."""

    name: str
    relation: Literal["at least", "at most"]
    required: float
    measured: float | None
    """The worst figure of the run; None if the run did not measure it."""

    @property
    def met(self) -> bool | None:
        """Whether the promise was kept; None if it was not put to the test."""
        if self.measured is None:
            return None
        if self.relation == "at least":
            return self.measured >= self.required
        return self.measured <= self.required

    def to_json(self) -> dict[str, object]:
        """Every field and the verdict."""
        return {
            "name": self.name,
            "relation": self.relation,
            "required": self.required,
            "measured": self.measured,
            "met": self.met,
        }


@dataclass(frozen=True)
class Report:
    """One run of a benchmark."""

    benchmark: str
    title: str
    """Heading of the page it makes."""
    command: tuple[str, ...]
    machine: dict[str, object]
    cells: tuple[dict[str, object], ...]
    """Every figure, for programs."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The same, for people."""
    legend: tuple[str, ...]
    """What the columns mean, and what was left out."""
    notes: tuple[str, ...]
    """Paragraphs on what dominates."""
    targets: tuple[Target, ...]

    def to_json(self) -> dict[str, object]:
        """The machine, the figures and the targets."""
        return {
            "benchmark": self.benchmark,
            "command": list(self.command),
            "machine": self.machine,
            "cells": list(self.cells),
            "targets": [target.to_json() for target in self.targets],
        }
