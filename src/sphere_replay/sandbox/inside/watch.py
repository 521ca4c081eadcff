"""Watches one running program from outside, and ends it at the first limit that it breaks."""

import contextlib
import os
import selectors
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import tree
from .confine import MOST_NAMES
from .judge import Judge

_CHUNK = 1 << 16
_MOST_REPORTS = 8 << 20
_TAIL = 2000
_FIRST_LOOK, _LONGEST_PAUSE = 0.02, 0.1


class HostGone(Exception):  # noqa: N818  # not an error: whoever asked has ended
    """The other end of the requests was closed."""


@dataclass(frozen=True)
class Ending:
    """How a program's process ended."""

    kind: str
    """`finished`, or the limit that was broken."""
    output: str
    """The last of what it printed."""


@dataclass
class Watch:
    """One program: its process, its two pipes, its limits."""

    process: int
    reports: int
    output: int
    requests: int
    limits: Mapping[str, float]
    judge: Judge
    folders: Sequence[str]
    """Folders on disk whose size must be watched; () where the file system limits it."""
    baselines: Mapping[int, int]
    """Processes that fork -> bytes of memory that every fork starts with."""

    def __post_init__(self) -> None:
        self._printed, self._reported, self._tail = 0, 0, b""

    def until_the_end(self) -> Ending:
        """Wait for the program or for a broken limit; afterwards none of its processes is left."""
        try:
            kind = self._wait()
        finally:
            tree.end_all(keep=self.baselines)
        self._drain(self.reports)
        self._drain(self.output)
        if kind == "finished":
            # What it did between the last look and its end.
            if self._printed > self.limits["output"]:
                kind = "output"
            elif self._is_full():
                kind = "scratch"
        return Ending(kind, self._tail.decode("utf-8", "replace"))

    def _wait(self) -> str:
        deadline = time.monotonic() + self.limits["wall"]
        pause = _FIRST_LOOK
        next_look = time.monotonic() + pause
        ended = os.pidfd_open(self.process)
        try:
            with selectors.DefaultSelector() as selector:
                for descriptor in (self.reports, self.output, self.requests, ended):
                    selector.register(descriptor, selectors.EVENT_READ)
                while True:
                    now = time.monotonic()
                    ready = selector.select(max(0.0, min(deadline, next_look) - now))
                    for key, _ in ready:
                        if key.fd == ended:
                            return "finished"
                        if key.fd == self.requests:
                            raise HostGone
                        if not self._take(key.fd):
                            selector.unregister(key.fd)
                    now = time.monotonic()
                    if now >= deadline:
                        return "timeout"
                    if self._printed > self.limits["output"]:
                        return "output"
                    if self._reported > _MOST_REPORTS:
                        self.judge.fraud = "a flood of reports"
                    if self.judge.fraud is not None:
                        return "tampered"
                    if now >= next_look:
                        broken = self._look()
                        if broken is not None:
                            return broken
                        pause = min(_LONGEST_PAUSE, pause * 1.5)
                        next_look = time.monotonic() + pause
        finally:
            os.close(ended)

    def _look(self) -> str | None:
        if tree.memory_beyond(self.baselines) > self.limits["memory"]:
            return "memory"
        return "scratch" if self._is_full() else None

    def _is_full(self) -> bool:
        for folder in self.folders:
            held, names = _size(folder)
            if held > self.limits["scratch"] or names > MOST_NAMES:
                return True
        return False

    def _take(self, descriptor: int) -> bool:
        """Read what is there; False at the end of it."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        if descriptor == self.reports:
            self._reported += len(data)
            self.judge.feed(data)
        else:
            self._printed += len(data)
            self._tail = (self._tail + data)[-_TAIL:]
        return bool(data)

    def _drain(self, descriptor: int) -> None:
        """Everybody who could write has ended: the pipe holds what is left, and then its end."""
        while self._take(descriptor):
            pass


def _size(folder: str) -> tuple[int, int]:
    """Bytes on disk and names below a folder; links are not followed."""
    held, names, folders = 0, 0, [folder]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                names += 1
                with contextlib.suppress(OSError):
                    held += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return held, names
