"""Where the time of an update of code generation goes: sampling, programs, replay, the step.

A few updates of the embedded policy through TRL's own loop, with SPHERE and a sandbox that has no
verdicts yet. Figures are shares of an update, medians over those that replay.
"""

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import Progress, Report, Target
from benchmarks.stopwatch import threads
from benchmarks.timing import describe_machine, milliseconds
from sphere_replay.coding.job import CodingJob, open_sandbox
from sphere_replay.coding.models import load_policy
from sphere_replay.coding.presets import resolve
from sphere_replay.coding.stages import load_problems

SUMMARY = "divide the time of an update of code generation"

PARTS = ("generate", "execute", "score", "allocate", "replay", "step")
"""Parts of an update; generate and execute are those of stream and candidates together."""

LEGEND = (
    "generate: programs of the current problems and of the candidates. execute: their rewards, "
    "each distinct program run once in the sandbox, none known before. score: losses of the mixed "
    "groups before and after the virtual AdamW step, and the step. allocate: from increments to "
    "drawn groups. replay: the gradient of these groups. step: the stream's gradient, clipping, "
    "AdamW, and whatever is left.",
)

NOTES = (
    "Running programs dominates with a policy this small: each is a process of its own, and costs "
    "more than its tokens. More workers, and verdicts kept from earlier runs, are what to turn. "
    "With a model of real size sampling and scoring take over. The allocation itself does not "
    "show.",
)


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    train: int = 24
    candidates: int = 16
    generations: int = 8
    batch: int = 8
    warm_up: int = 300
    stages: str = "text,choices"


QUICK = Plan(train=4, candidates=3, generations=2, batch=4, warm_up=60)


@dataclass(frozen=True)
class Cell:
    """A part of an update."""

    part: str
    seconds: float
    share: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing but what all benchmarks have."""


def measure(arguments: argparse.Namespace, progress: Progress) -> Report:
    """Run updates, and divide each that replays."""
    plan = QUICK if arguments.quick else Plan()
    with threads(1), tempfile.TemporaryDirectory() as home:
        machine = describe_machine()
        cells = _cells(_updates(plan, Path(home), progress))
    allocation = next(cell.share for cell in cells if cell.part == "allocate")
    return Report(
        benchmark="coding",
        title="Code generation",
        command=("sphere", "bench", "coding", *(("--quick",) if arguments.quick else ())),
        machine=machine,
        cells=tuple(asdict(cell) for cell in cells),
        columns=("part of an update", "ms", "share"),
        rows=tuple(
            (cell.part, milliseconds(cell.seconds), f"{100 * cell.share:.2f}%") for cell in cells
        ),
        legend=(
            f"The micro policy, {plan.batch} current problems and {plan.candidates} candidates "
            f"with {plan.generations} programs each, SPHERE.",
            *LEGEND,
        ),
        notes=NOTES,
        targets=(Target("of an update for the allocation", "at most", 0.01, allocation),),
    )


def _updates(plan: Plan, home: Path, progress: Progress) -> list[dict[str, float]]:
    """Seconds by part of every update that replays something."""
    config = resolve(
        "coding-micro",
        select="sphere",
        stages=plan.stages,
        train=plan.train,
        evaluation=1,
        passes=2,
        batch=plan.batch,
        generations=plan.generations,
        candidates=plan.candidates,
        micro_batch=plan.batch * plan.generations,
        warm_up=plan.warm_up,
    )
    progress(0, 1, "building the policy")
    base = load_policy(config, home)
    job = CodingJob(config, load_problems(config, None), base, open_sandbox(config, None))
    found: list[dict[str, float]] = []

    def after_step(
        record: Mapping[str, Any] | None, seconds: Mapping[str, float] | None = None
    ) -> None:
        assert record is not None
        progress(record["step"] + 1, len(job), "updates")
        if record["replay"].get("draws"):
            found.append(dict(seconds or {}))

    job.run(0, after_step)
    return found


def _cells(updates: list[dict[str, float]]) -> list[Cell]:
    parts = {part: median(update[part] for update in updates) for part in PARTS}
    whole = sum(parts.values())
    return [Cell(part, seconds, seconds / whole) for part, seconds in parts.items()]
