"""The stages of a run: which problems are learned, in which order, and which are judged."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from sphere_replay.coding.config import MICRO, SPLITS, CodingConfig
from sphere_replay.coding.problems import Problem, micro_family, read_problems, split_problems
from sphere_replay.errors import DataError, unknown
from sphere_replay.randomness import generator_for

MICRO_SIZES = {"train": 40, "evaluation": 40, "fit": 24, "probe": 24}
"""Micro-problems per stage and split, whatever a run uses of them; the rest are lessons."""


@dataclass(frozen=True)
class Stage:
    """A stage of the stream."""

    name: str
    train: tuple[Problem, ...]
    """In the order in which they are learned."""
    judged: tuple[Problem, ...]


@dataclass(frozen=True)
class Stages:
    """All stages in order, and the problems whose prompts are too long."""

    stages: tuple[Stage, ...]
    too_long: int

    @property
    def problems(self) -> dict[str, Problem]:
        """Every problem of the run by its id."""
        return {p.id: p for stage in self.stages for p in (*stage.train, *stage.judged)}

    def updates(self, batch: int, passes: int) -> list[tuple[int, tuple[Problem, ...]]]:
        """(stage, current problems) of every update; a rest that fills no update is left out.

        All passes over a stage have one order, so the problems of an update are distinct even
        where it reaches over the end of a pass.
        """
        return [
            (number, tuple((stage.train * passes)[start : start + batch]))
            for number, stage in enumerate(self.stages)
            for start in range(0, passes * len(stage.train) - batch + 1, batch)
        ]


def load_problems(config: CodingConfig, data: Path | None) -> tuple[Problem, ...]:
    """The problems of a configuration: micro-problems, or those of a prepared file.

    Args:
        config: The run.
        data: The file, or the folder in which `problems` is one; default `$SPHERE_DATA`.
    """
    if config.problems == MICRO:
        return _micro()[0]
    place = data if data is not None else Path(os.environ.get("SPHERE_DATA", "."))
    path = place / f"{config.problems}.jsonl" if place.is_dir() else place
    if not path.is_file():
        raise DataError(
            f"{path} does not exist: prepare problems with `sphere problems prepare kodcode --out "
            f"{config.problems}.jsonl`, and name the file, or its folder, with --data"
        )
    return read_problems(path)


def lessons() -> tuple[Problem, ...]:
    """Micro-problems that no run trains or is judged on."""
    return _micro()[1]


@cache
def _micro() -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    # One split for all seeds: the policy is made once, and programs are judged once.
    chosen, beyond = split_problems(micro_family(), 0, MICRO_SIZES)
    return tuple(chosen), tuple(beyond)


def build_stages(
    problems: Sequence[Problem], config: CodingConfig, fits: Callable[[Problem], bool]
) -> Stages:
    """The stages that a configuration asks for, without problems that do not fit."""
    known = list(dict.fromkeys(problem.stage for problem in problems))
    for name in config.stage_names:
        if name not in known:
            raise DataError(unknown("stage", name, known))
    names = config.stage_names or known
    asked = [problem for problem in problems if problem.stage in names]
    usable = [problem for problem in asked if fits(problem)]
    stages = tuple(_stage(name, usable, config) for name in names)
    return Stages(stages, len(asked) - len(usable))


def _stage(name: str, problems: Sequence[Problem], config: CodingConfig) -> Stage:
    learned, judged = (
        [p for p in problems if p.stage == name and p.split == split][:most]
        for split, most in zip(
            SPLITS[config.evaluate_on], (config.train, config.evaluation), strict=True
        )
    )
    if len(learned) < config.batch:
        raise DataError(
            f"stage {name!r} has {len(learned)} training problems, but an update takes "
            f"{config.batch} distinct ones: prepare more, or lower batch (--set batch=...)"
        )
    if not judged:
        raise DataError(f"stage {name!r} has no problem to evaluate on: prepare more")
    order = torch.randperm(
        len(learned), generator=generator_for(config.seed, f"stream order, {name}")
    )
    return Stage(name, tuple(learned[place] for place in order.tolist()), tuple(judged))
