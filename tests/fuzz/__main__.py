"""`make fuzz`: as many random cases as there is time for; every finding is named by its number.

python -m fuzz allocations --minutes 10 --workers 2
python -m fuzz files --most 1000
python -m fuzz allocations --case 12345
"""

import argparse
import itertools
import multiprocessing
import secrets
import sys
import time
from collections.abc import Sequence
from functools import partial

from fuzz.blocks import BLOCK, KINDS, Block, look_at_block
from sphere_replay.runs.progress import step_progress


def main(argv: Sequence[str] | None = None) -> int:
    """1 if anything was found."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--most", type=int, default=1_000_000, help="checks (default: a million)")
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
    work = partial(look_at_block, arguments.kind, started + 60 * arguments.minutes)
    blocks: list[Block] = []
    checks = count = 0
    context = multiprocessing.get_context("spawn")
    with (
        step_progress(f"fuzz {arguments.kind}", hidden=False) as report,
        context.Pool(arguments.workers) as pool,
    ):
        numbers = itertools.count(first, BLOCK)
        waiting = [pool.apply_async(work, (next(numbers),)) for _ in range(2 * arguments.workers)]
        while waiting:
            block = waiting.pop(0).get()
            blocks.append(block)
            checks += block.checks
            count += len(block.findings)
            for finding in block.findings:
                print(finding, flush=True)
            if report is not None:
                report(checks, arguments.most, f"{count} findings")
            if block.cases == BLOCK and checks < arguments.most:
                waiting.append(pool.apply_async(work, (next(numbers),)))
    cases = sum(block.cases for block in blocks)
    busy = sum(block.seconds for block in blocks)
    print(
        f"{cases} cases, {checks} checks in {time.time() - started:.0f} s "
        f"({1000 * busy / max(1, checks):.1f} ms of processor time each): {count} findings"
    )
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
