"""One run of any domain from its configuration: folder, job, metrics."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sphere_replay.config import RunConfig
from sphere_replay.errors import UsageError
from sphere_replay.runs.domains import domain
from sphere_replay.runs.folder import RunFolder, identity
from sphere_replay.runs.job import LoopingJob, RecordedJob, SteppedJob
from sphere_replay.runs.metrics import measure
from sphere_replay.runs.recording import FOLDER
from sphere_replay.runs.records import record_of
from sphere_replay.runs.runner import Report, run_job


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
        if record and not isinstance(job, RecordedJob):
            raise UsageError(f"runs of {config.DOMAIN} are not recorded: leave out --record")
        if record and isinstance(job, RecordedJob):
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
