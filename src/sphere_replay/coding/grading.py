"""What programs are worth: the visible node rewards them, the full suite judges them.

Programs run in the sandbox and nowhere else, judged as their problem says. Rewards come from runs
of the visible node alone, so that not even the time another node takes can leak into training.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sphere_replay.coding.config import CodingConfig
from sphere_replay.coding.problems import Problem
from sphere_replay.coding.programs import extract_program, text_of
from sphere_replay.errors import DataError
from sphere_replay.runs.job import ReplayTally, ratio
from sphere_replay.sandbox import Sandbox, SandboxError, Trial

Attempt = tuple[Problem, str]
"""A problem and a program that is to solve it."""


def open_sandbox(config: CodingConfig, verdicts: Path | None) -> Sandbox:
    """The sandbox of a run, or a sentence on how to get one."""
    try:
        return Sandbox(
            limits=config.limits, workers=config.workers, cache=verdicts, unsafe=config.unsafe
        )
    except SandboxError as error:
        raise DataError(
            f"{error}. `sphere sandbox check` says what this machine offers; in a run the danger "
            "is accepted with --set unsafe=true"
        ) from error


class Grader:
    """Runs programs against their problems' tests; equal ones of a batch are run once."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def rewards(self, attempts: Sequence[Attempt]) -> list[bool]:
        """Whether each program passes its problem's visible node."""
        return self._passed(attempts, lambda problem: (problem.visible,))

    def solved(self, attempts: Sequence[Attempt]) -> list[bool]:
        """Whether each program passes the full suite: for evaluation and audits only."""
        return self._passed(attempts, lambda problem: problem.nodes)

    def _passed(
        self, attempts: Sequence[Attempt], nodes: Callable[[Problem], Sequence[str]]
    ) -> list[bool]:
        # What writes nothing passes nothing, and need not be run.
        wanted = {(p.id, program): p for p, program in attempts if program}
        trials = [Trial(program, p.tests, nodes(p), p.judge) for (_, program), p in wanted.items()]
        verdicts = dict(zip(wanted, self._sandbox.run_many(trials), strict=True))
        for verdict in verdicts.values():
            if verdict.ending == "broken":
                raise SandboxError(f"a program could not be judged: {verdict.why}")
        return [
            bool(program) and verdicts[problem.id, program].passed for problem, program in attempts
        ]


@dataclass(frozen=True)
class Sampled:
    """A program and its reward."""

    problem: Problem
    program: str
    rewarded: bool


class VisibleReward:
    """TRL's reward function: 1 for passing the visible node. It keeps what it has judged."""

    __name__ = "visible_reward"  # how TRL calls it in its logs

    def __init__(self, grader: Grader, problems: Mapping[str, Problem]) -> None:
        self._grader = grader
        self._problems = problems
        self._sampled: list[Sampled] = []
        self.seconds = 0.0
        """Spent on running programs so far."""

    def __call__(self, *, completions: Sequence[Any], id: Sequence[str], **_: Any) -> list[float]:
        """Rewards of completions of the problems with these ids."""
        programs = [extract_program(text_of(completion)) for completion in completions]
        problems = [self._problems[name] for name in id]
        start = time.perf_counter()
        rewards = self._grader.rewards(list(zip(problems, programs, strict=True)))
        self.seconds += time.perf_counter() - start
        self._sampled += map(Sampled, problems, programs, rewards)
        return [float(reward) for reward in rewards]

    def taken(self) -> list[Sampled]:
        """The programs judged since the last call."""
        sampled, self._sampled = self._sampled, []
        return sampled


@dataclass
class Tally(ReplayTally):
    """What a run has counted: rewards, hollow ones among them, and what replay did.

    By update and by stage; plain numbers throughout.
    """

    rewards: list[float] = field(default_factory=list)
    """Mean visible reward of the stream's programs, update by update."""
    rewarded: list[int] = field(default_factory=list)
    """Rewarded programs of the stream, stage by stage."""
    hollow: list[int] = field(default_factory=list)
    """Of these, the ones that fail the full suite."""
    programs: int = 0
    """Programs that the stream has sampled."""

    def count(self, sampled: Sequence[Sampled], stage: int, grader: Grader) -> None:
        """Count an update's programs; the full suite is asked now, after they were learned from."""
        rewarded = [(one.problem, one.program) for one in sampled if one.rewarded]
        solved = grader.solved(rewarded)
        while len(self.rewarded) <= stage:
            self.rewarded.append(0)
            self.hollow.append(0)
        self.rewards.append(len(rewarded) / len(sampled))
        self.rewarded[stage] += len(rewarded)
        self.hollow[stage] += solved.count(False)
        self.programs += len(sampled)

    def summary(self) -> dict[str, Any]:
        """The part about rewards of a run's results."""
        return {
            "visible": list(self.rewards),
            "rewarded": list(self.rewarded),
            "hollow": list(self.hollow),
            "hollow_share": ratio(sum(self.hollow), sum(self.rewarded)),
        }
