"""What a fresh fork does to become a confined process: descriptors, namespaces, rights, folder."""

import os
import signal
from collections.abc import Mapping

from . import confine

FIRST = 3
"""The descriptors that a process is given follow 0, 1 and 2; no other is left open."""


def rewire(output: int, *given: int) -> None:
    """Nothing to read, all printed into one pipe, `given` from `FIRST` on; close the rest."""
    high = 100
    sources = [os.open(os.devnull, os.O_RDONLY), output, output, *given]
    for place, source in enumerate(sources):
        os.dup2(source, high + place)
    for place in range(len(sources)):
        os.dup2(high + place, place, inheritable=place < FIRST)
    os.closerange(len(sources), 1 << 16)


def enter(
    confinement: confine.Confinement,
    uid: int | None,
    folder: str,
    limits: Mapping[str, float],
) -> None:
    """Confine this fork for good; an exception means that it must end.

    Where every program has namespaces of its own, the process that returns is a child of the one
    that called, which waits for it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    if confinement.isolation == "bubblewrap":
        confine.enter_namespaces(uid, limits)
        process = os.fork()  # the first process of the namespace of pids
        if process:
            os.waitpid(process, 0)
            os._exit(0)
    elif uid is not None:
        os.chown(folder, uid, uid)
    os.chdir(folder)
    confine.lock(confinement, uid, folder, limits)
    # No home, no path: only what points programs at the one folder they may write to.
    os.environ.clear()
    os.environ["TMPDIR"] = os.environ["HOME"] = folder
