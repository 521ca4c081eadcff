"""Runs any job step by step in a folder: checkpoints, resumes, logs, stops cleanly.

Either the steps are taken from here, one by one, or the job has a loop of its own, such as that of
somebody else's trainer, and tells after each step that it is done.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event
from time import monotonic
from types import FrameType
from typing import Any

from sphere_replay.errors import Interrupted
from sphere_replay.runs.checkpoint import load_latest, save
from sphere_replay.runs.folder import RunFolder, describe_environment
from sphere_replay.runs.job import LoopingJob, SteppedJob
from sphere_replay.runs.log import RunLog, read_log
from sphere_replay.runs.tracking import Tracking

LONGEST_LOSS = 300.0
"""Seconds of work that a kill may cost: steps can be short or long, so the clock decides too."""

Report = Callable[[int, int, str], None]
"""Told how many steps are done, of how many, and a few words about how it goes."""


def run_job(
    make_job: Callable[[], SteppedJob | LoopingJob],
    folder: RunFolder,
    config: Mapping[str, object],
    *,
    seed: int,
    checkpoint_every: int = 500,
    report: Report | None = None,
    finish: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    track: Sequence[str] = (),
    digests: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a job to its end, from its latest checkpoint if there is one.

    `finish` may add to the job's results what is computed from them, such as metrics. `track` names
    trackers, see `runs.tracking`; they get what was logged before as well. `digests` are those of
    parts from plug-ins, for the manifest.

    Killed at any moment and called again with the same arguments, it ends with the same bits in
    `results.json`. Checkpoints are saved every `checkpoint_every` steps, and by the clock where
    that many take longer than `LONGEST_LOSS`. Ctrl-C saves one first and raises `Interrupted`.
    """
    if checkpoint_every < 1:
        raise ValueError(f"checkpoint_every counts steps: at least 1, got {checkpoint_every}")
    with folder.claim(config):
        if folder.finished:
            with Tracking(track, folder) as tracking:
                for line in read_log(folder.log_path) if track else ():
                    tracking.log(line)
                tracking.summarize(folder.results)
            return folder.results
        job = make_job()
        changes = folder.write_manifest(describe_environment(seed, job.checksums, digests))
        latest = load_latest(folder.path)
        step, lines = 0, 0
        if latest is not None:
            step, lines = latest.tree["step"], latest.tree["lines"]
            job.load_state_dict(latest.tree["job"])
        saved_at = monotonic()
        with (
            Tracking(track, folder) as tracking,
            RunLog(folder.log_path, position=lines) as log,
            _stop_requests() as stop,
        ):
            for line in read_log(folder.log_path) if track else ():
                tracking.log(line)
            for problem in latest.problems if latest else ():
                log.append({"step": step, "checkpoint": problem})
            for change in changes:
                log.append({"step": step, "environment": change})

            def after_step(
                record: Mapping[str, object] | None, seconds: Mapping[str, float] | None = None
            ) -> None:
                nonlocal step, saved_at
                step += 1
                if record is not None:
                    tracking.log(log.append(record, seconds))
                if report is not None:
                    report(step, len(job), job.status)
                due = step % checkpoint_every == 0 or monotonic() - saved_at > LONGEST_LOSS
                if stop.is_set() or (due and step < len(job)):
                    tree = {"step": step, "lines": log.sync(), "job": job.state_dict()}
                    save(folder.path, tree)
                    saved_at = monotonic()
                if stop.is_set():
                    raise Interrupted(f"stopped after step {step} of {len(job)}")

            if isinstance(job, LoopingJob):
                checkpoint_every = min(checkpoint_every, job.checkpoint_every)
                job.run(step, after_step)
            else:
                while step < len(job):
                    after_step(job.advance(step))
            results = job.results()
            folder.write_results(finish(results) if finish else results)
            tracking.summarize(folder.results)
        return folder.results


@contextmanager
def _stop_requests() -> Iterator[Event]:
    """Turn the first Ctrl-C into a request honoured between steps; a second one is final."""
    request = Event()

    def remember(number: int, frame: FrameType | None) -> None:
        request.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        previous = signal.signal(signal.SIGINT, remember)
    except ValueError:  # not the main thread: somebody else handles signals
        yield request
        return
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, previous)
