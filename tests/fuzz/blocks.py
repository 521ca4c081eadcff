"""What a process of `make fuzz` does between two words."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from fuzz import allocations, files
from fuzz.found import Found

BLOCK = 100
"""Cases between two words of a worker."""
KINDS: dict[str, Callable[[int], Found]] = {"allocations": allocations.look, "files": files.look}


class Block(NamedTuple):
    """What became of some cases; none once the time is over."""

    cases: int
    checks: int
    findings: list[str]
    seconds: float
    """Of processor time."""


def look_at_block(kind: str, until: float, first: int) -> Block:
    """Look at the cases from a number on."""
    torch.set_num_threads(1)
    started = time.process_time()
    cases = checks = 0
    findings = []
    for seed in range(first, first + BLOCK):
        if time.time() > until:
            break
        found = KINDS[kind](seed)
        cases += 1
        checks += found.checks
        findings += [f"{kind} --case {seed}: {problem}" for problem in found.problems]
    return Block(cases, checks, findings, time.process_time() - started)
