"""Splits per stage: 120 training, 100 evaluation, 40 and 40 development problems, all disjoint."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

import torch

from sphere_replay.randomness import generator_for

from .problem import SPLIT_SIZES, Problem


def split_sizes(available: int, sizes: Mapping[str, int] = SPLIT_SIZES) -> dict[str, int]:
    """The sizes, or, where fewer problems are available, the same proportions of what there is.

    What rounding down leaves over goes to the largest remainders, the first of equal ones first.
    """
    total = sum(sizes.values())
    if available >= total:
        return dict(sizes)
    scaled = {name: available * size // total for name, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda name: -(available * sizes[name] % total))
    for name in by_remainder[: available - sum(scaled.values())]:
        scaled[name] += 1
    return scaled


def split_problems(
    problems: Sequence[Problem], seed: int, sizes: Mapping[str, int] = SPLIT_SIZES
) -> tuple[list[Problem], list[Problem]]:
    """(problems with their split, those beyond all splits), stage by stage in order of appearance.

    Which problem goes where depends on the seed and the ids of its stage, not on their order.
    """
    if unknown := set(sizes) - set(SPLIT_SIZES):
        raise ValueError(
            f"no such split: {', '.join(sorted(unknown))}; use {', '.join(SPLIT_SIZES)}"
        )
    if any(size < 0 for size in sizes.values()) or not sum(sizes.values()):
        raise ValueError(f"sizes = {dict(sizes)}: none may be negative, one must be positive")
    chosen, beyond = [], []
    for stage in dict.fromkeys(problem.stage for problem in problems):
        pool = sorted((p for p in problems if p.stage == stage), key=lambda p: p.id)
        order = torch.randperm(len(pool), generator=generator_for(seed, f"problem splits, {stage}"))
        drawn = iter([pool[place] for place in order.tolist()])
        for name, size in split_sizes(len(pool), sizes).items():
            chosen += [replace(problem, split=name) for problem in islice(drawn, size)]
        beyond += list(drawn)
    return chosen, beyond
