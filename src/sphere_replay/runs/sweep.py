"""Many runs, on one machine or a cluster; finished ones are skipped, failed ones are reported."""

import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sphere_replay.config import RunConfig
from sphere_replay.errors import Interrupted, UsageError
from sphere_replay.plugging import loaded
from sphere_replay.runs.cluster import on_cluster
from sphere_replay.runs.launch import Outcome, Surroundings, attempt, run_folder
from sphere_replay.runs.runner import Report
from sphere_replay.runs.tracking import check_trackers

BROKEN_POOLS = 3
"""Pools of workers that may break in a row before their runs count as failed."""


def sweep(
    configs: Iterable[RunConfig],
    out: Path,
    *,
    data: Path | None = None,
    workers: int = 1,
    ray: str | None = None,
    report: Report | None = None,
    strict: bool = False,
    record: int = 0,
    track: Sequence[str] = (),
) -> list[Outcome]:
    """Run every configuration; one that fails stops nobody else, unless it is `strict`.

    So many rescorings as `record` says are kept of each, see `runs.recording`; `track` names
    trackers that get the numbers of each, see `runs.tracking`.

    Workers are fresh processes here, or those of the cluster whose address `ray` is, see
    `runs.cluster`. Interrupted, the sweep goes on where it was when it is called again: each run
    resumes from its own checkpoint.
    """
    check_trackers(track)
    configs = list(configs)
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        if strict and outcome.status == "failed":
            raise UsageError(f"a run failed: {outcome.reason}")
        outcomes.append(outcome)
        if report is not None:
            failed = sum(outcome.status == "failed" for outcome in outcomes)
            report(len(outcomes), len(configs), f"{failed} failed" if failed else "")

    waiting: dict[Path, list[RunConfig]] = {}
    for config in configs:
        folder = run_folder(config, out)
        if folder.finished:
            done(Outcome(config, "skipped"))
        else:  # a run that is wanted twice is made once
            waiting.setdefault(folder.path, []).append(config)
    around = Surroundings(out, data, record, tuple(track))
    firsts = [alike[0] for alike in waiting.values()]
    try:
        for outcome in _outcomes(firsts, around, workers, ray):
            if outcome.status == "interrupted":
                raise Interrupted(f"stopped with {len(configs) - len(outcomes)} runs to go")
            for config in waiting[run_folder(outcome.config, out).path]:
                done(replace(outcome, config=config))
    except KeyboardInterrupt:
        raise Interrupted("stopped") from None
    return outcomes


def _outcomes(
    configs: list[RunConfig], around: Surroundings, workers: int, ray: str | None
) -> Iterator[Outcome]:
    if ray is not None and configs:
        return on_cluster(configs, around, ray)
    if workers > 1:
        return _side_by_side(configs, around, workers)
    return (attempt(config, around) for config in configs)


def _side_by_side(
    configs: list[RunConfig], around: Surroundings, workers: int
) -> Iterator[Outcome]:
    """A worker that is killed takes its pool along: what it leaves goes to another one.

    Pools that break one after the other without ending a run between them are given up.
    """
    context = multiprocessing.get_context("spawn")
    left, broken = configs, 0
    while left and broken < BROKEN_POOLS:
        broken, waiting = broken + 1, left
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent) as pool:
            futures: dict[Future[Outcome], RunConfig] = {}
            with suppress(BrokenExecutor):  # so soon
                for config in waiting:
                    futures[pool.submit(attempt, config, around, loaded())] = config
            left = waiting[len(futures) :]
            try:
                for future in as_completed(futures):
                    try:
                        outcome = future.result()
                    except BrokenExecutor:
                        left.append(futures[future])
                    else:
                        broken = 0
                        yield outcome
            finally:  # workers get Ctrl-C, too, and save their runs
                pool.shutdown(cancel_futures=True)
    for config in left:
        yield Outcome(config, "failed", "its worker process was killed")


def _end_with_parent() -> None:
    """A sweep that is killed takes its workers along; they resume from their checkpoints."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
