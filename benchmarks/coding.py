"""Where the time of an update of code generation goes: sampling, programs, replay, the step.

A few updates of the embedded policy through TRL's own loop, with SPHERE and a sandbox that has no
verdicts yet. Figures are shares of an update, medians over those that replay.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import harness
from benchmarks.harness import Benchmark, Cell, at_most, column, named
from benchmarks.rendering import Progress
from benchmarks.timing import milliseconds
from sphere_replay.coding.grading import open_sandbox
from sphere_replay.coding.job import CodingJob
from sphere_replay.coding.models import load_policy
from sphere_replay.coding.presets import resolve
from sphere_replay.coding.stages import load_problems

PARTS = ("generate", "execute", "score", "allocate", "replay", "step")
"""Parts of an update; generate and execute are those of stream and candidates together."""


@dataclass(frozen=True)
class Plan(harness.Plan):
    """How much is sampled."""

    train: int = 24
    candidates: int = 16
    generations: int = 8
    batch: int = 8
    warm_up: int = 300
    stages: str = "text,choices"


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """Run updates, and divide each that replays."""
    with tempfile.TemporaryDirectory() as home:
        updates = _updates(plan, Path(home), progress)
    parts = {part: median(update[part] for update in updates) for part in PARTS}
    update = sum(parts.values())
    return [
        {"figure": part, "seconds": seconds, "share": seconds / update}
        for part, seconds in parts.items()
    ]


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
        pool=plan.candidates,
        micro_batch=plan.batch * plan.generations,
        warm_up=plan.warm_up,
    )
    progress("building the policy")
    base = load_policy(config, home)
    job = CodingJob(config, load_problems(config, None), base, open_sandbox(config, None))
    found: list[dict[str, float]] = []
    progress.expect(len(job))

    def after_step(
        record: Mapping[str, Any] | None, seconds: Mapping[str, float] | None = None
    ) -> None:
        assert record is not None
        progress("updates")
        if record["replay"].get("draws"):
            found.append(dict(seconds or {}))

    job.run(0, after_step)
    return found


BENCHMARK = Benchmark(
    title="Code generation",
    plan=Plan(),
    quick=Plan(train=4, candidates=3, generations=2, batch=4, warm_up=60),
    measure=measure,
    columns={
        "part of an update": column("figure"),
        "ms": column("seconds", by=milliseconds),
        "share": column("share", by="{:.2%}".format),
    },
    targets=(at_most(0.01, "of an update for the allocation", "share", where=named("allocate")),),
    setting=lambda plan: (
        f"The micro policy, {plan.batch} current problems and {plan.candidates} candidates with "
        f"{plan.generations} programs each, SPHERE."
    ),
    legend="""
        generate: programs of the current problems and of the candidates. execute: their
        rewards, each distinct program run once in the sandbox, none known before. score: losses
        of the mixed groups before and after the virtual AdamW step, and the step. allocate:
        from increments to drawn groups. replay: the gradient of these groups. step: the
        stream's gradient, clipping, AdamW, and whatever is left.
    """,
    notes="""
        Running programs dominates with a policy this small: each is a process of its own, and
        costs more than its tokens. More workers, and verdicts kept from earlier runs, are what
        to turn. With a model of real size sampling and scoring take over. The allocation itself
        does not show.
    """,
)
