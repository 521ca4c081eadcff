"""One run of any domain from its configuration: folder, job, metrics; and as one of a sweep."""

import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sphere_replay.config import RunConfig
from sphere_replay.errors import Interrupted
from sphere_replay.plugging import Plugin, PluginError, load_again
from sphere_replay.runs.domains import domain
from sphere_replay.runs.folder import FolderBusyError, RunFolder, identity
from sphere_replay.runs.job import LoopingJob, SteppedJob
from sphere_replay.runs.metrics import measure
from sphere_replay.runs.recording import FOLDER
from sphere_replay.runs.records import record_of
from sphere_replay.runs.runner import Report, run_job

ERROR_FILE = "error.txt"
_BETWEEN_LOOKS = 0.5


def run_folder(config: RunConfig, out: Path, *, accept_edited: bool = False) -> RunFolder:
    """Where a run lives: readable, and unique by the first digits of its identity."""
    name = f"{config.run_name}-{identity(config.to_dict())[:8]}"
    return RunFolder(out / name, accept_edited=accept_edited)


def run_config(
    config: RunConfig,
    out: Path,
    *,
    data: Path | None = None,
    checkpoint_every: int = 500,
    report: Report | None = None,
    progress: bool = False,
    record: int = 0,
    track: Sequence[str] = (),
) -> dict[str, Any]:
    """Run a configuration, or finish it, or return what it gave when it was run before.

    So many rescorings as `record` says are kept in its folder, see `runs.recording`; `track`
    names trackers that get its numbers, see `runs.tracking`.
    """
    folder = run_folder(config, out)

    def make_job() -> SteppedJob | LoopingJob:
        job = domain(config.DOMAIN).make_job(config, data, out, progress)
        if record:
            job.record(folder.path / FOLDER, record)
        return job

    return run_job(
        make_job,
        folder,
        config.to_dict(),
        seed=config.seed,
        checkpoint_every=checkpoint_every,
        report=report,
        finish=lambda results: results | {"metrics": measure(record_of(results))},
        track=track,
        digests={part: digest for part, digest in config.code.items() if part in config.parts},
    )


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    config: RunConfig
    status: Literal["finished", "skipped", "failed", "interrupted"]
    reason: str = ""
    """The last line of what went wrong; the whole of it is in the run's `error.txt`."""


@dataclass(frozen=True)
class Surroundings:
    """Where the runs of a sweep are, and what is done with each beside running it."""

    out: Path
    data: Path | None
    record: int
    track: tuple[str, ...]


def attempt(
    config: RunConfig,
    around: Surroundings,
    plugins: Iterable[Plugin] = (),
    *,
    patience: float = 0.0,
) -> Outcome:
    """Run a configuration, in a process that may not know of plug-ins yet.

    So many seconds as `patience` says it waits for a folder that somebody else holds.
    """
    try:
        load_again(plugins)
    except PluginError as error:  # without it, not even the run's folder is known
        return Outcome(config, "failed", str(error))
    folder = run_folder(config, around.out)
    try:
        _run(config, around, time.monotonic() + patience)
    except (Interrupted, KeyboardInterrupt):
        return Outcome(config, "interrupted")
    except Exception as error:
        folder.path.mkdir(parents=True, exist_ok=True)
        (folder.path / ERROR_FILE).write_text(traceback.format_exc())
        return Outcome(config, "failed", f"{type(error).__name__}: {error}")
    (folder.path / ERROR_FILE).unlink(missing_ok=True)
    return Outcome(config, "finished")


def _run(config: RunConfig, around: Surroundings, until: float) -> None:
    while True:
        try:
            run_config(
                config, around.out, data=around.data, record=around.record, track=around.track
            )
        except FolderBusyError:
            if time.monotonic() >= until:
                raise
            time.sleep(_BETWEEN_LOOKS)
        else:
            return
