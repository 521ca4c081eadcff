"""From candidates to splits, as in the paper, with a word on everything that was dropped."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from sphere_replay.randomness import generator_for
from sphere_replay.sandbox import Sandbox

from .duplicates import Embedding, hashed_ngrams, near_duplicates
from .examine import Examined, Settings, check_imports, check_references
from .problem import Problem
from .splits import split_problems

REPEATED_ID = "repeated id"
NEAR_DUPLICATE = "near duplicate"
UNEXAMINED = "not examined"
BEYOND = "not needed"

_BATCH = 16
"""References examined at a time: enough for all workers, few enough for a lively progress bar."""

Report = Callable[[int, int, str], None]
"""Told (candidates done, all candidates, words)."""


@dataclass(frozen=True)
class Drop:
    """A candidate that was not used, and why."""

    id: str
    stage: str
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Prepared:
    """Problems with nodes and splits, and all that was left behind."""

    problems: tuple[Problem, ...]
    dropped: tuple[Drop, ...]
    unstable_nodes: int
    """Nodes that were excluded from problems which are used."""


def prepare(
    candidates: Sequence[Problem],
    sandbox: Sandbox,
    settings: Settings | None = None,
    *,
    embed: Embedding = hashed_ngrams,
    report: Report | None = None,
) -> Prepared:
    """Examine candidates, remove near duplicates among the good ones, and split each stage.

    Candidates of a stage are visited in an order drawn from the seed. Duplicates are looked for
    across all stages, so that no evaluation problem recurs in training anywhere.
    """
    settings = settings if settings is not None else Settings()
    dropped: list[Drop] = []
    good: dict[str, Examined] = {}
    for examined in _examine_all(candidates, sandbox, settings, report):
        if examined.reason:
            dropped.append(_drop(examined.problem, examined.reason, examined.detail))
        else:
            good[examined.problem.id] = examined
    problems = [examined.problem for examined in good.values()]
    unique, repeats = remove_duplicates(problems, settings.similarity, embed)
    chosen, beyond = split_problems(unique, settings.seed, settings.sizes)
    dropped += repeats + [_drop(problem, BEYOND) for problem in beyond]
    unstable = sum(len(good[problem.id].unstable) for problem in chosen)
    return Prepared(tuple(chosen), tuple(dropped), unstable)


def remove_duplicates(
    problems: Sequence[Problem], above: float | None, embed: Embedding = hashed_ngrams
) -> tuple[list[Problem], list[Drop]]:
    """(problems whose prompts differ, the others)."""
    prompts = [problem.prompt for problem in problems]
    if above is None:
        first = {prompt: index for index, prompt in reversed(list(enumerate(prompts)))}
        repeats = {i: first[prompt] for i, prompt in enumerate(prompts) if first[prompt] != i}
    else:
        repeats = near_duplicates(prompts, embed, above)
    kept = [problem for index, problem in enumerate(problems) if index not in repeats]
    return kept, [
        _drop(problems[index], NEAR_DUPLICATE, f"like {problems[original].id}")
        for index, original in repeats.items()
    ]


def _examine_all(
    candidates: Sequence[Problem], sandbox: Sandbox, settings: Settings, report: Report | None
) -> Iterator[Examined]:
    """Every candidate examined, or set aside once its stage has enough."""
    done = 0
    ids: set[str] = set()
    for stage in dict.fromkeys(problem.stage for problem in candidates):
        pool = [problem for problem in candidates if problem.stage == stage]
        generator = generator_for(settings.seed, f"problem order, {stage}")
        order = torch.randperm(len(pool), generator=generator).tolist()
        good = 0
        for start in range(0, len(pool), _BATCH):
            batch = [pool[place] for place in order[start : start + _BATCH]]
            if good >= settings.enough:
                results = [Examined(problem, UNEXAMINED, "enough without it") for problem in batch]
            else:
                fresh = [_new(problem, ids) for problem in batch]
                results = _examine(fresh, sandbox, settings)
            good += sum(not examined.reason for examined in results)
            yield from results
            done += len(batch)
            if report is not None:
                report(done, len(candidates), f"{stage}: {good} good")


def _new(problem: Problem, ids: set[str]) -> Examined:
    if problem.id in ids:
        return Examined(problem, REPEATED_ID)
    ids.add(problem.id)
    return check_imports(problem)


def _examine(checked: list[Examined], sandbox: Sandbox, settings: Settings) -> list[Examined]:
    runnable = [examined.problem for examined in checked if not examined.reason]
    ran = iter(check_references(runnable, sandbox, settings))
    return [examined if examined.reason else next(ran) for examined in checked]


def _drop(problem: Problem, reason: str, detail: str = "") -> Drop:
    return Drop(problem.id, problem.stage, reason, detail)
