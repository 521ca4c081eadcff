"""Folders that programs and tests work in: made for every run, gone after it."""

import os
import tempfile

from .confine import FOLDER_IN_MEMORY

_NAMES = ("program", "tests")


class Scratch:
    """A folder for the program and one for the tests; in memory each process mounts its own."""

    def __init__(self, *, in_memory: bool) -> None:
        self.outer: str | None = None
        if not in_memory:
            # Nobody can list the outer folder; the inner ones belong to the two processes.
            self.outer = tempfile.mkdtemp(prefix="sphere-sandbox-", dir=_place())
            os.chmod(self.outer, 0o711)
            self._make()

    @property
    def watched(self) -> tuple[str, ...]:
        """Folders whose size nobody limits."""
        return () if self.outer is None else tuple(map(self.folder, _NAMES))

    def folder(self, name: str) -> str:
        """The folder of one process."""
        return FOLDER_IN_MEMORY if self.outer is None else f"{self.outer}/{name}"

    def renew(self) -> None:
        """Empty folders for the next run."""
        if self.outer is not None:
            self._remove()
            self._make()

    def close(self) -> None:
        """Leave nothing."""
        if self.outer is not None:
            self._remove()
            os.rmdir(self.outer)

    def _make(self) -> None:
        for folder in self.watched:
            os.mkdir(folder, 0o700)

    def _remove(self) -> None:
        assert self.outer is not None
        for folder in self.watched:
            _remove(folder, self.outer)


def _place() -> str | None:
    """In memory if it can be had: a disk takes seconds to remove what a program leaves behind."""
    memory = "/dev/shm"
    return memory if os.access(memory, os.W_OK | os.X_OK) else None


def _remove(folder: str, beside: str) -> None:
    """Remove a folder whose processes have all ended, however deep and closed it is.

    Folders within it are moved `beside` it first: no path gets long, and nothing recurses.
    """
    pending, moved = [folder], 0
    while pending:
        place = pending.pop()
        os.chmod(place, 0o700)
        for entry in list(os.scandir(place)):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)  # moving a folder writes to it
                moved += 1
                pending.append(f"{beside}/{moved}")
                os.rename(entry.path, pending[-1])
            else:
                os.unlink(entry.path)
        os.rmdir(place)
