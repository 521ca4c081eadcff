"""The processes that descend from this one: what they hold, and how to end them all."""

import contextlib
import os
import signal
import time
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

_PATIENCE = 10.0
_SOCKET_BUFFER = 212_992  # what the kernel grants where nobody may ask for more


def descendants(process: int | None = None, but: Container[int] = ()) -> Iterator[int]:
    """Pids below a process (this one), parents first, without some and what is below them."""
    folder = Path(f"/proc/{os.getpid() if process is None else process}/task")
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in os.listdir(folder):
            with contextlib.suppress(OSError):
                children += map(int, (folder / thread / "children").read_text().split())
    for child in children:
        if child not in but:
            yield child
            yield from descendants(child, but)


def anonymous_memory(process: int | str) -> int:
    """Bytes of memory that a process holds and that no file backs; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    held = [line.split() for line in fields if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(int(words[1]) << 10 for words in held)


def sockets(process: int) -> set[str]:
    """The sockets that a process has open; none if nobody may know."""
    folder, found = f"/proc/{process}/fd", set()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"{folder}/{name}"))
    return {name for name in found if name.startswith("socket:")}


def memory_beyond(baselines: Mapping[int, int]) -> int:
    """Bytes that descendants hold, less what each of them inherited by being forked.

    Memory that a descendant shares with its own children counts for each of them. Of sockets, what
    their buffers can hold: how full they are nobody tells.

    Args:
        baselines: Of every process that forks: this one, or children that are not counted.
    """
    held, buffers = 0, set()
    for parent, baseline in baselines.items():
        for process in descendants(parent, but=baselines):
            held += max(0, anonymous_memory(process) - baseline)
            buffers |= sockets(process)
    return held + len(buffers) * _SOCKET_BUFFER


def end_all(keep: Container[int] = ()) -> None:
    """Kill every descendant but some, and wait until none is left; this process adopts orphans.

    Stopped first, so that nobody forks while others are being killed.
    """
    patience, quiet = time.monotonic() + _PATIENCE, 0
    while True:
        processes = [process for process in descendants() if process not in keep]
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, sign)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        # One that is orphaned during a look may be seen with neither parent, but not twice.
        quiet = 0 if processes else quiet + 1
        if quiet == 2:
            return
        if time.monotonic() > patience:
            raise RuntimeError(f"processes {processes} do not end")
        if processes:
            time.sleep(0.0005)
