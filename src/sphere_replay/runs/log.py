"""The log of a run: one JSON line for each step that matters, kept through crashes.

Everything in a line but its `time` is deterministic, so that the log of a run that was killed and
resumed equals that of one that never stopped.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sphere_replay.errors import DataError
from sphere_replay.storage.files import plain, room_for


class RunLog:
    """Appends lines to a log that starts out with its first `position` lines.

    A checkpoint stores what `sync()` returned; a run resumed from it passes that number on as
    `position`, and the lines written after the checkpoint, which it is about to write again, go.
    """

    def __init__(self, path: Path, *, position: int = 0) -> None:
        self.path = path
        self._lines = position
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # closed by close()
        try:
            os.truncate(path, _offset(path, position))
        except BaseException:
            self._file.close()
            raise

    def append(
        self, record: Mapping[str, object], seconds: Mapping[str, float] | None = None
    ) -> dict[str, Any]:
        """Write one line, and return it; `seconds` are durations, kept with the clock under `time`.

        Losses that are not finite are spelled out ("nan", "inf"): a log must survive them.
        """
        if "time" in record:
            raise ValueError("'time' is the log's own field; pass durations as seconds={...}")
        clock = {"unix": round(time.time(), 3), **(seconds or {})}
        line: dict[str, Any] = plain({**record, "time": clock}, "log", spell_non_finite=True)
        # One unbuffered write: a kill can tear this line but none before it.
        with room_for(self.path):
            self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._lines += 1
        return line

    def sync(self) -> int:
        """Bring all lines onto the disk and count them; call before saving a checkpoint."""
        os.fsync(self._file.fileno())
        return self._lines

    def close(self) -> None:
        """Close the file; every line is already written."""
        self._file.close()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_log(path: Path, *, times: bool = True) -> list[dict[str, Any]]:
    """The lines of a log, without a last one that was torn by a kill.

    With `times=False` they lose their `time` and can be compared between runs.
    """
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is torn or empty
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (RecursionError, ValueError) as error:
            raise DataError(
                f"{path}, line {number} is damaged: {error}; restore the log from a copy, or "
                "delete the folder and run again"
            ) from None
        if not (isinstance(record, dict) and isinstance(record.get("time"), dict)):
            raise DataError(f"{path}, line {number} is damaged: it is no line of a log")
        if not times:
            del record["time"]
        records.append(record)
    return records


def _offset(path: Path, lines: int) -> int:
    """Length in bytes of the first so many lines."""
    if lines < 0:
        raise ValueError(f"a position counts lines and cannot be negative, got {lines}")
    offset, found = 0, 0
    with open(path, "rb") as file:
        while found < lines:
            line = file.readline()
            if not line.endswith(b"\n"):
                raise DataError(
                    f"{path} has {found} complete lines, but the checkpoint was saved after "
                    f"{lines}: put the log back, or delete the checkpoint to start again"
                )
            offset += len(line)
            found += 1
    return offset
