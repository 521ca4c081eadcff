"""`make soak`: kills at random moments, workers that vanish, a process that lives long.

- Runs of every kind are killed with SIGKILL at random and started again with the same command; they
  must end in the bytes of one that never stopped.
- A sweep loses workers at random and must end complete.
- Memory must not grow over many steps.

Examples:
  python -m benchmarks.soak
  python -m benchmarks.soak --kills 5 --runs 8 --steps 1500 --only vision sweep
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from sphere_replay.cli import main as sphere
from sphere_replay.runs.folder import RunFolder
from sphere_replay.runs.log import read_log

RUNS: Mapping[str, Sequence[str]] = {
    "vision": ("digits", "--host=er-ace", "--select=sphere", "--limit=1200"),
    "fit": ("digits", "--host=gdumb", "--limit=100", "--set=options.epochs=32"),
    "instruct": (
        *("instruct-tiny", "--host=er", "--select=sphere"),
        *("--set=cap=64", "--set=tests_per_task=4", "--set=warm_up=30"),
    ),
    "coding": (
        *("coding-micro", "--host=er", "--select=sphere", "--set=passes=1", "--set=capacity=32"),
        *("--set=train=8", "--set=batch=4", "--set=generations=4", "--set=micro_batch=16"),
        # Programs that a busy machine cuts off would differ from one time to the next.
        *("--set=evaluation=4", "--set=pool=8", "--set=warm_up=60", "--set=wall=120"),
    ),
}
"""By kind: what `sphere run` is asked for, small enough to be killed a hundred times."""
GROWTH = 1.05
"""Of the resident memory, from the first tenth of the steps to the end: at most."""
_FORKS = multiprocessing.get_context("forkserver")
# What a run imports takes longer than the run: lives are forked from where it is loaded.
_FORKS.set_forkserver_preload(
    [
        *("torch._dynamo", "sklearn.datasets"),
        *("transformers.models.t5", "transformers.models.qwen2"),
        *(f"sphere_replay.{name}" for name in ("vision.job", "instruct.job", "coding.trainer")),
    ]
)


def _start(words: Sequence[str], out: Path) -> BaseProcess:
    process = _FORKS.Process(target=_live, args=([*words, "--quiet", f"--out={out}"], out))
    process.start()
    return process


def _live(words: list[str], out: Path) -> None:
    """What `sphere` does, in a process of its own."""
    for stream, target in ((1, Path(os.devnull)), (2, _said(out))):
        os.dup2(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.exit(sphere(words))


def _said(out: Path) -> Path:
    return out.with_suffix(".err")


def _problem(out: Path) -> str:
    said = _said(out).read_text(errors="replace").strip().splitlines()
    return said[-1] if said else "nothing was said"


def _deterministic(folder: Path) -> dict[str, object]:
    """What a run must end with, whatever happened to it."""
    assert not RunFolder(folder).edited
    files = {name: (folder / name).read_bytes() for name in ("config.json", "results.json")}
    log = [line for line in read_log(folder / "log.jsonl", times=False) if "checkpoint" not in line]
    return {**files, "log.jsonl": log}


def kill_runs(
    kind: str, kills: int, minutes: float, lives: float, home: Path, dice: random.Random
) -> dict[str, object]:
    """Kill runs of a kind so many times, or for so long; whether all ended in the same bytes."""
    words = ["run", *RUNS[kind], "--checkpoint-every=1"]
    out = home / kind
    _start(["--version"], out).join()  # by then everything is imported
    started = time.monotonic()
    process = _start(words, out)
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{kind} fails without a kill: {_problem(out)}")
    seconds = time.monotonic() - started
    (folder,) = (path.parent for path in out.glob("*/results.json"))
    expected = _deterministic(folder)
    done = resumed = ended = different = 0
    _forget(folder)
    while (left := done < kills and time.monotonic() < started + 60 * minutes) or folder.exists():
        resumed += (folder / "checkpoint.json").exists()
        process = _start(words, out)
        process.join(dice.uniform(0, seconds / lives) if left else None)
        if process.exitcode is None:
            process.kill()
            process.join()
            done += 1
            continue
        if process.exitcode != 0:
            raise RuntimeError(f"{kind} fails after {done} kills: {_problem(out)}")
        ended += 1
        different += _deterministic(folder) != expected
        _forget(folder)
    return {
        "kind": kind,
        "kills": done,
        "resumed": resumed,
        "runs ended": ended,
        "different": different,
    }


def _forget(folder: Path) -> None:
    """Remove a run and what its programs came to, so that the next one computes it again."""
    shutil.rmtree(folder)
    shutil.rmtree(folder.parent / "verdicts", ignore_errors=True)


def kill_workers(runs: int, home: Path, dice: random.Random) -> dict[str, object]:
    """A sweep of so many tiny runs on two workers, of which one goes every few seconds."""
    words = ["sweep", "digits", "--limit=40", "--set=capacity=20", f"--seeds={max(1, runs // 2)}"]
    words += ["--methods", "ER", "ER + SPHERE", "--columns", "40%", "--workers=2"]
    out = home / "sweep"
    kills = starts = before = 0
    while True:
        starts += 1
        process = _start(words, out)
        while process.exitcode is None:
            process.join(dice.uniform(5, 20))
            ended = len(list(out.glob("*/results.json")))
            workers = list(_workers(process.pid))
            # Only after another run has ended: on a busy machine nothing would, otherwise.
            if ended > before and workers:
                os.kill(dice.choice(workers), signal.SIGKILL)
                kills, before = kills + 1, ended
        if process.exitcode == 0:
            break
        if starts > 10 + runs:
            raise RuntimeError(f"the sweep does not end: {_problem(out)}")
    finished = [path.parent for path in out.glob("*/results.json")]
    intact = [folder for folder in finished if not RunFolder(folder).edited]
    wanted = 2 * max(1, runs // 2)
    return {
        "kind": "sweep",
        "kills": kills,
        "starts": starts,
        "runs ended": len(intact),
        "different": wanted - len(intact),
    }


def _workers(parent: int | None) -> Iterator[int]:
    """Processes that a sweep computes in, by their command lines."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes()
        except OSError:  # gone meanwhile
            continue
        if int(fields[1]) == parent and b"spawn_main" in command:
            yield int(path.parent.name)


def live_long(steps: int, home: Path) -> dict[str, object]:
    """Runs in one process, one after the other, until so many steps are done."""
    from sphere_replay.runs.domains import resolve
    from sphere_replay.runs.launch import run_config

    done = seed = 0
    first = last = 0.0

    def report(step: int, total: int, status: str) -> None:
        nonlocal done, first, last
        done += 1
        if done == max(1, steps // 10):
            first = _resident()
        last = _resident()

    while done < steps:
        config = resolve(
            "digits", host="er", select="sphere", seed=seed, batch=1, evaluate_every=200
        )
        run_config(config, home / "long", checkpoint_every=200, report=report)
        seed += 1
    growth = last / first
    return {
        "kind": "memory",
        "steps": done,
        "MiB": [round(first), round(last)],
        "different": int(growth > GROWTH),
    }


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(argv: Sequence[str] | None = None) -> int:
    """One line of JSON for each kind; 1 if anything differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = [*RUNS, "sweep", "memory"]
    parser.add_argument("--kills", type=int, default=100, help="of each kind of run")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of killing each kind")
    parser.add_argument(
        "--lives",
        type=float,
        default=3.0,
        help="a kill comes within the time of a whole run divided by this (default: 3)",
    )
    parser.add_argument("--runs", type=int, default=200, help="of the sweep")
    parser.add_argument("--steps", type=int, default=10_000, help="of the long process")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args(argv)
    dice = random.Random(arguments.seed)
    wrong = 0
    for kind in arguments.only:
        with tempfile.TemporaryDirectory(prefix="soak-") as place:
            home = Path(place)
            started = time.monotonic()
            if kind == "sweep":
                found = kill_workers(arguments.runs, home, dice)
            elif kind == "memory":
                found = live_long(arguments.steps, home)
            else:
                limits = arguments.kills, arguments.minutes, arguments.lives
                found = kill_runs(kind, *limits, home, dice)
            seconds = round(time.monotonic() - started)
            print(json.dumps(found | {"seconds": seconds}), flush=True)
            wrong += int(str(found["different"]))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
