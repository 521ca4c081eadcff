"""Whether a problem can be used: what it imports, which nodes it has, whether its reference passes.

The paper's rules: standard library only, 4-12 collectible nodes, a reference that passes all nodes
in two executions, without the nodes that are unstable.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sphere_replay.sandbox import Sandbox, SandboxError, Trial, Verdict

from .problem import SPLIT_SIZES, Problem
from .pytest_files import UNPARSABLE, imported_modules

NOT_PYTHON = "not Python"
FOREIGN_IMPORT = "not standard library"
NO_NODE = "no collectible node"
NODE_COUNT = "number of nodes"
FAILING = "reference fails"
UNSTABLE = "too few stable nodes"
ONE_INTERPRETER = "needs one interpreter"

_AT_HAND = frozenset(sys.stdlib_module_names) | {"pytest", "solution"}
"""What tests may import; a reference may not import the two that are not of the library."""


@dataclass(frozen=True)
class Settings:
    """The rules of a preparation; the defaults are the paper's."""

    fewest: int = 4
    """The least number of nodes, also after unstable ones are gone."""
    most: int = 12
    similarity: float | None = 0.90
    """Prompts with a larger cosine are near duplicates; None: only equal prompts are."""
    sizes: Mapping[str, int] = field(default_factory=lambda: dict(SPLIT_SIZES))
    enough: int = 400
    """Good candidates of a stage after which no more are run: 300 and some for near duplicates."""
    seed: int = 0
    shared: bool = False
    """Whether problems are used that only one interpreter can judge, where programs can cheat."""

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise ValueError(f"nodes from {self.fewest} to {self.most}: give 1 <= fewest <= most")
        if self.enough < 1:
            raise ValueError(f"enough = {self.enough}: at least one problem has to be examined")
        if self.similarity is not None and not -1 <= self.similarity <= 1:
            raise ValueError(f"similarity = {self.similarity} is no cosine: give -1 to 1, or None")


@dataclass(frozen=True)
class Examined:
    """A problem with the nodes that count, or the reason why it cannot be used."""

    problem: Problem
    reason: str = ""
    detail: str = ""
    unstable: tuple[str, ...] = ()
    """Nodes with two outcomes in two runs; they do not count."""


def check_imports(problem: Problem) -> Examined:
    """Whether reference and tests are Python and import nothing but the standard library."""
    try:
        foreign = imported_modules(problem.reference) - sys.stdlib_module_names
        foreign |= imported_modules(problem.tests) - _AT_HAND
    except UNPARSABLE as error:
        return Examined(problem, NOT_PYTHON, _last_line(str(error)))
    if foreign:
        return Examined(problem, FOREIGN_IMPORT, f"imports {', '.join(sorted(foreign))}")
    return Examined(problem)


def check_references(
    problems: Sequence[Problem], sandbox: Sandbox, settings: Settings
) -> list[Examined]:
    """Run every reference twice against its tests, and keep the nodes that pass both times.

    Whatever does not pass under the strict judge is tried under the shared one.

    Args:
        problems: What to examine; all their nodes are collected anew.
        sandbox: Without a cache, which would answer the second run with the first.
        settings: How many nodes there must be, and whether the shared judge may be needed.
    """
    strict = _run_twice(problems, sandbox, settings, "strict")
    again = [examined.problem for examined in strict if examined.reason not in ("", NODE_COUNT)]
    other = iter(_run_twice(again, sandbox, settings, "shared"))
    results = []
    for examined in strict:
        if examined.reason not in ("", NODE_COUNT):
            why = examined.detail or examined.reason
            examined = next(other)
            if not examined.reason:
                problem = replace(examined.problem, judge="shared", why_shared=why)
                reason, detail = ("", "") if settings.shared else (ONE_INTERPRETER, why)
                examined = Examined(problem, reason, detail, examined.unstable)
        results.append(examined)
    return results


def _run_twice(
    problems: Sequence[Problem], sandbox: Sandbox, settings: Settings, judge: str
) -> list[Examined]:
    trials = [Trial(problem.reference, problem.tests, None, judge) for problem in problems]
    first = _run(sandbox, trials)
    results = [
        _check_nodes(problem, verdict, settings.fewest, settings.most)
        for problem, verdict in zip(problems, first, strict=True)
    ]
    again = [place for place, examined in enumerate(results) if not examined.reason]
    for place, second in zip(again, _run(sandbox, [trials[i] for i in again]), strict=True):
        results[place] = check_stability(problems[place], first[place], second, settings.fewest)
    return results


def _check_nodes(problem: Problem, verdict: Verdict, fewest: int, most: int) -> Examined:
    """Whether one run collected as many nodes as it should, and came to its end."""
    count = len(verdict.nodes)
    if verdict.ending in ("empty", "uncollected"):
        return Examined(problem, NO_NODE, _last_line(verdict.why))
    if not fewest <= count <= most:
        return Examined(problem, NODE_COUNT, f"{count}, not {fewest} to {most}")
    if verdict.ending != "finished":
        return Examined(problem, FAILING, _last_line(verdict.why))
    return Examined(problem)


def check_stability(problem: Problem, first: Verdict, second: Verdict, fewest: int) -> Examined:
    """What two runs of the reference agree on: all of it must be passes."""
    # A name that is made anew in every run, such as an address, is missing from the other run.
    union = dict.fromkeys((*first.nodes, *second.nodes))
    unstable = tuple(node for node in union if first.nodes.get(node) != second.nodes.get(node))
    stable = tuple(node for node in first.nodes if node not in unstable)
    failing = [node for node in stable if first.nodes[node] != "passed"]
    if failing:
        detail = f"{failing[0]}: {_last_line(first.messages.get(failing[0], '')) or 'not passed'}"
        return Examined(problem, FAILING, detail, unstable)
    if len(stable) < fewest:
        return Examined(problem, UNSTABLE, f"{len(stable)}, not {fewest}", unstable)
    return Examined(replace(problem, nodes=stable), unstable=unstable)


def _run(sandbox: Sandbox, trials: Sequence[Trial]) -> list[Verdict]:
    verdicts = sandbox.run_many(trials)
    for verdict in verdicts:
        if verdict.ending == "broken":
            raise SandboxError(f"a reference could not be judged: {verdict.why}")
        if verdict.cached:
            raise ValueError("two executions are needed: give a sandbox without a cache")
    return verdicts


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()
