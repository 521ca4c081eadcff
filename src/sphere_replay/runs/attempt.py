"""One run of a sweep, wherever it happens: it ends in an outcome, never in an error."""

import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sphere_replay.config import RunConfig
from sphere_replay.errors import Interrupted
from sphere_replay.plugging import Plugin, PluginError, load_again
from sphere_replay.runs.folder import FolderBusyError
from sphere_replay.runs.launch import run_config, run_folder

ERROR_FILE = "error.txt"
_BETWEEN_LOOKS = 0.5


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
