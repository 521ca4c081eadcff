"""What programs are worth: the visible node rewards them, the full suite judges them.

Programs run in the sandbox and nowhere else, judged as their problem says. Rewards come from runs
of the visible node alone, so that not even the time another node takes can leak into training.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphere_replay.coding.config import CodingConfig
from sphere_replay.coding.problems import Problem
from sphere_replay.coding.programs import extract_program, text_of
from sphere_replay.errors import DataError
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
