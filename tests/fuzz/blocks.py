"""What a process of `make fuzz` does between two words."""

import time
from collections.abc import Callable

import torch

from fuzz import allocations, files
from fuzz.found import Found

BLOCK = 100
"""Cases between two words of a worker."""
KINDS: dict[str, Callable[[int], Found]] = {"allocations": allocations.look, "files": files.look}


def look_at_block(kind: str, until: float, first: int) -> tuple[int, int, list[str]]:
    """Cases looked at, checks made, and findings; nothing once the time is over."""
    torch.set_num_threads(1)
    cases = checks = 0
    findings = []
    for seed in range(first, first + BLOCK):
        if time.time() > until:
            break
        found = KINDS[kind](seed)
        cases += 1
        checks += found.checks
        findings += [f"{kind} --case {seed}: {problem}" for problem in found.problems]
    return cases, checks, findings
