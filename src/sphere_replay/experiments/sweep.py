"""Many runs on the cores of one machine; finished ones are skipped, failed ones are reported."""

import multiprocessing
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sphere_replay.experiments.launch import run_folder, run_vision
from sphere_replay.vision.config import VisionConfig


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    config: VisionConfig
    status: Literal["finished", "skipped", "failed"]
    reason: str = ""
    """The last line of what went wrong; the whole of it is in the run's `error.txt`."""


def sweep(
    configs: Iterable[VisionConfig],
    out: Path,
    *,
    data: Path | None = None,
    workers: int = 1,
    report: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Run every configuration; one that fails stops nobody else.

    Workers are fresh processes. Interrupted, the sweep goes on where it was when it is called
    again: each run resumes from its own checkpoint.
    """
    configs = list(configs)
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if report is not None:
            report(outcome)

    waiting = []
    for config in configs:
        if run_folder(config, out).finished:
            done(Outcome(config, "skipped"))
        else:
            waiting.append(config)
    if workers == 1:
        for config in waiting:
            done(_attempt(config, out, data))
        return outcomes
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(_attempt, config, out, data) for config in waiting]
        try:
            for future in as_completed(futures):
                done(future.result())
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return outcomes


def _attempt(config: VisionConfig, out: Path, data: Path | None) -> Outcome:
    folder = run_folder(config, out)
    try:
        run_vision(config, out, data=data)
    except Exception as error:
        folder.path.mkdir(parents=True, exist_ok=True)
        (folder.path / "error.txt").write_text(traceback.format_exc())
        return Outcome(config, "failed", f"{type(error).__name__}: {error}")
    return Outcome(config, "finished")
