"""Many runs on the cores of one machine; finished ones are skipped, failed ones are reported."""

import multiprocessing
import os
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sphere_replay.config import RunConfig
from sphere_replay.errors import Interrupted, UsageError
from sphere_replay.plugging import Plugin, PluginError, load_again, loaded
from sphere_replay.runs.launch import run_config, run_folder
from sphere_replay.runs.runner import Report
from sphere_replay.runs.tracking import check_trackers

ERROR_FILE = "error.txt"


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    config: RunConfig
    status: Literal["finished", "skipped", "failed", "interrupted"]
    reason: str = ""
    """The last line of what went wrong; the whole of it is in the run's `error.txt`."""


@dataclass(frozen=True)
class _Extras:
    """What is done with each run beside running it."""

    record: int
    track: tuple[str, ...]


def sweep(
    configs: Iterable[RunConfig],
    out: Path,
    *,
    data: Path | None = None,
    workers: int = 1,
    report: Report | None = None,
    strict: bool = False,
    record: int = 0,
    track: Sequence[str] = (),
) -> list[Outcome]:
    """Run every configuration; one that fails stops nobody else, unless it is `strict`.

    So many rescorings as `record` says are kept of each, see `runs.recording`; `track` names
    trackers that get the numbers of each, see `runs.tracking`.

    Workers are fresh processes. Interrupted, the sweep goes on where it was when it is called
    again: each run resumes from its own checkpoint.
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

    waiting = []
    for config in configs:
        if run_folder(config, out).finished:
            done(Outcome(config, "skipped"))
        else:
            waiting.append(config)
    attempts = _in_turn if workers == 1 else _side_by_side
    for outcome in attempts(waiting, out, data, workers, _Extras(record, tuple(track))):
        if outcome.status == "interrupted":
            raise Interrupted(f"stopped with {len(configs) - len(outcomes)} runs to go")
        done(outcome)
    return outcomes


def _in_turn(
    configs: list[RunConfig], out: Path, data: Path | None, workers: int, extras: _Extras
) -> Iterator[Outcome]:
    for config in configs:
        yield _attempt(config, out, data, extras)


def _side_by_side(
    configs: list[RunConfig], out: Path, data: Path | None, workers: int, extras: _Extras
) -> Iterator[Outcome]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent) as pool:
        futures = {
            pool.submit(_attempt, config, out, data, extras, loaded()): config for config in configs
        }
        try:
            for future in as_completed(futures):
                try:
                    yield future.result()
                except BrokenExecutor:
                    yield Outcome(futures[future], "failed", "its worker process was killed")
        except KeyboardInterrupt:  # the workers got it too, and are saving their runs
            raise Interrupted("stopped") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A sweep that is killed takes its workers along; they resume from their checkpoints."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _attempt(
    config: RunConfig,
    out: Path,
    data: Path | None,
    extras: _Extras,
    plugins: tuple[Plugin, ...] = (),
) -> Outcome:
    """Run a configuration, in a process that may not know of plug-ins yet."""
    try:
        load_again(plugins)
    except PluginError as error:  # without it, not even the run's folder is known
        return Outcome(config, "failed", str(error))
    folder = run_folder(config, out)
    try:
        run_config(config, out, data=data, record=extras.record, track=extras.track)
    except (Interrupted, KeyboardInterrupt):
        return Outcome(config, "interrupted")
    except Exception as error:
        folder.path.mkdir(parents=True, exist_ok=True)
        (folder.path / ERROR_FILE).write_text(traceback.format_exc())
        return Outcome(config, "failed", f"{type(error).__name__}: {error}")
    (folder.path / ERROR_FILE).unlink(missing_ok=True)
    return Outcome(config, "finished")
