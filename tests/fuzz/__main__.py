"""`make fuzz`: as many random cases as there is time for; every finding is named by its number.

python -m fuzz --minutes 10 --workers 2
python -m fuzz --case 12345
"""

import argparse
import multiprocessing
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from fuzz import allocations

BLOCK = 500
"""Cases between two words of a worker."""
KINDS: dict[str, Callable[[int], allocations.Found]] = {"allocations": allocations.look}


def _block(kind: str, until: float, first: int) -> tuple[int, int, list[str]]:
    """Cases looked at, allocations made, and findings; nothing once the time is over."""
    torch.set_num_threads(1)
    cases = allocated = 0
    findings = []
    for seed in range(first, first + BLOCK):
        if time.time() > until:
            break
        found = KINDS[kind](seed)
        cases += 1
        allocated += found.allocations
        findings += [f"{kind} --case {seed}: {problem}" for problem in found.problems]
    return cases, allocated, findings


def main(argv: Sequence[str] | None = None) -> int:
    """1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="allocations")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--most", type=int, default=1_000_000, help="checks at most")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--seed", type=int, help="first case (default: another one every time)")
    parser.add_argument("--case", type=int, help="look at this one alone")
    arguments = parser.parse_args(argv)
    if arguments.case is not None:
        problems = KINDS[arguments.kind](arguments.case).problems
        print("\n".join(problems) or "nothing found")
        return int(bool(problems))
    first = secrets.randbelow(1 << 40) if arguments.seed is None else arguments.seed
    print(f"{arguments.kind}: cases from {first} on, {arguments.workers} at a time", flush=True)
    started = time.time()
    until = started + 60 * arguments.minutes
    cases = allocated = count = 0

    def blocks() -> Iterator[int]:
        number = 0
        while time.time() < until and allocated < arguments.most:
            yield first + BLOCK * number
            number += 1

    work = partial(_block, arguments.kind, until)
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        waiting = []
        for block in blocks():
            waiting.append(pool.apply_async(work, (block,)))
            while len(waiting) > 2 * arguments.workers:
                done, made, findings = waiting.pop(0).get()
                cases, allocated, count = cases + done, allocated + made, count + len(findings)
                print("\n".join(findings), end="\n" if findings else "", flush=True)
        for last in waiting:
            done, made, findings = last.get()
            cases, allocated, count = cases + done, allocated + made, count + len(findings)
            print("\n".join(findings), end="\n" if findings else "", flush=True)
    seconds = time.time() - started
    print(f"{cases} cases, {allocated} checks in {seconds:.0f} s: {count} findings")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
