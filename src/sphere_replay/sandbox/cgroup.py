"""A control group for a worker: the kernel's own account of memory and processes, where allowed.

Version 2 of control groups, in a folder that may be written to: root's, or one that was delegated.
"""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Self

from .limits import Limits

_JOIN = 'echo $$ > "$0" && exec "$@"'
_PATIENCE = 2.0


class ControlGroup:
    """A group that a worker and all its descendants live in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._memory, self._tasks = 0, 0

    @classmethod
    def make(
        cls, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
    ) -> Self | None:
        """A new group beside or above this process's own; None where that is not allowed."""
        try:
            lines = own.read_text().splitlines()
            name = next(line[3:] for line in lines if line.startswith("0::"))
        except (OSError, StopIteration):
            return None
        place = root / name.lstrip("/")
        if shutil.which("sh") is None:
            return None
        for parent in (place, *place.parents):
            if not parent.is_relative_to(root):
                return None
            with contextlib.suppress(OSError):
                handed_on = (parent / "cgroup.subtree_control").read_text().split()
                if {"memory", "pids"} <= set(handed_on) and os.access(parent, os.W_OK):
                    return cls(Path(tempfile.mkdtemp(prefix="sphere-", dir=parent)))
        return None

    def joined(self, command: list[str]) -> list[str]:
        """A command that enters the group before anything else."""
        return ["sh", "-c", _JOIN, str(self.folder / "cgroup.procs"), *command]

    def settle(self) -> None:
        """What the group holds now is the worker's own, and does not count for programs."""
        self._memory = self._read("memory.current")
        self._tasks = self._read("pids.current")

    def limit(self, limits: Limits) -> None:
        """Set the limits of the next run, for the program and the tests together."""
        for name, value in (
            ("memory.swap.max", 0),
            ("memory.max", self._memory + limits.memory),
            ("pids.max", self._tasks + 2 * limits.processes + 2),
        ):
            with contextlib.suppress(FileNotFoundError):  # kernels without swap
                (self.folder / name).write_text(str(value))

    def kills(self) -> int:
        """Processes that were killed for want of memory so far."""
        with contextlib.suppress(OSError):
            for line in (self.folder / "memory.events").read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def close(self) -> None:
        """Remove the group once everybody has left it."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self.folder.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    return  # it holds nothing but its name
                time.sleep(0.01)

    def _read(self, name: str) -> int:
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return 0
