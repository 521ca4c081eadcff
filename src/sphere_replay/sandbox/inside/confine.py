"""What a fresh fork gives up before it runs a program; a step that fails is an error, never less.

With bubblewrap the server already lives among read-only mounts without a network; each program then
gets namespaces of its own: no process but its own to see, an empty /proc, a folder in memory that
vanishes with it. Without bubblewrap, landlock guards files and signals. Limits and the filter of
system calls apply to both.
"""

import contextlib
import os
import resource
import signal
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from . import kernel, landlock, seccomp

FOLDER_IN_MEMORY = "/tmp"
"""Where programs work under bubblewrap."""
MOST_NAMES = 10_000
"""Files and folders that a program may create."""
FIRST = 3
"""The descriptors that a process is given follow 0, 1 and 2; no other is left open."""

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_FIRST_UID, _LAST_UID = 0x7000_0000, 0x7FFF_0000
_LAST_UID_OF_SMALL_MAPS = 65_533


@dataclass(frozen=True)
class Confinement:
    """How programs are confined: settled once, when the server starts."""

    isolation: str
    """`bubblewrap`, `landlock` or `none`."""
    readable: tuple[str, ...]
    """Files and folders that Python and pytest live in."""
    packages: tuple[str, ...]
    """Folders of packages, which programs must not import from."""
    address_space: int = 0
    """What Python and pytest occupy before any program, which its limit is not meant to count."""


def settled(confinement: Confinement) -> Confinement:
    """With all loaded that forks need: from now on they find the standard library and no more."""
    sys.path[:] = [path for path in sys.path if path not in confinement.packages]
    sys.path_importer_cache.clear()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return replace(confinement, address_space=pages * resource.getpagesize())


def throw_away_uid(role: int) -> int | None:
    """A uid that nobody else has, for root to leave; None if this is not root.

    The two roles of a run, 0 and 1, get different ones.

    The kernel counts processes per uid, and exempts root from the count: only a uid of its own
    makes the limit hold, and makes the program powerless against everything that runs here.
    """
    if os.getuid() != 0:
        return None
    last = 0
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = (int(word) for word in line.split())
        last = max(last, inside + count - 1)
    process = os.getpid()  # of the server: no two run side by side under one
    if last >= _LAST_UID:
        return _FIRST_UID + (2 * process + role) % (_LAST_UID - _FIRST_UID)
    if last < _LAST_UID_OF_SMALL_MAPS:
        raise OSError(f"root has no uid to leave to: uids here end at {last}")
    return _LAST_UID_OF_SMALL_MAPS - (2 * process + role) % 8192


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
    confinement: Confinement, uid: int | None, folder: str, limits: Mapping[str, float]
) -> None:
    """Confine this fork for good; an exception means that it must end.

    Where every program has namespaces of its own, the process that returns is a child of the one
    that called, which waits for it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    if confinement.isolation == "bubblewrap":
        _enter_namespaces(uid, limits)
        process = os.fork()  # the first process of the namespace of pids
        if process:
            os.waitpid(process, 0)
            os._exit(0)
    elif uid is not None:
        os.chown(folder, uid, uid)
    os.chdir(folder)
    _lock(confinement, uid, folder, limits)
    # No home, no path: only what points programs at the one folder they may write to.
    os.environ.clear()
    os.environ["TMPDIR"] = os.environ["HOME"] = folder


def _enter_namespaces(uid: int | None, limits: Mapping[str, float]) -> None:
    """New namespaces for the next child, with an empty /proc and a folder in memory."""
    with contextlib.suppress(OSError):  # if memory runs out, this goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    if uid is not None:
        kernel.become(uid)
    user, group = os.getuid(), os.getgid()
    kernel.unshare(kernel.NEW_USER | kernel.NEW_MOUNTS | kernel.NEW_PIDS | kernel.NEW_IPC)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    data_only = kernel.NO_SETUID | kernel.NO_DEVICES | kernel.NO_EXECUTE
    size = f"size={int(limits['scratch'])},nr_inodes={MOST_NAMES},mode=0700"
    kernel.mount_memory(FOLDER_IN_MEMORY, data_only, size)
    kernel.mount_memory("/proc", data_only | kernel.READ_ONLY, "size=4096,mode=0555")


def _lock(
    confinement: Confinement, uid: int | None, folder: str, limits: Mapping[str, float]
) -> None:
    """The last steps, in the process that will run the program."""
    processes = int(limits["processes"])
    if confinement.isolation == "bubblewrap":
        kernel.die_with_parent()
        kernel.limit_capabilities()
    elif uid is None:
        processes += _tasks_of(os.getuid())
    if confinement.isolation == "landlock":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        hidden = any(not _reachable(path) for path in confinement.readable)
        if uid is not None:
            # Landlock still decides which files are open; the capability only gets the program
            # to a Python that lives under root's own folder.
            kernel.become(uid, (kernel.CAP_DAC_READ_SEARCH,) if hidden else ())
        landlock.restrict(confinement.readable, _DEVICES, folder)
    _set_limits(limits, processes, confinement.address_space)
    if confinement.isolation != "none":
        owner = confinement.isolation == "landlock" and uid is None
        scoped = landlock.version() >= landlock.SIGNALS_SINCE
        seccomp.install(owner=owner, only_self=os.getpid() if owner and not scoped else None)


def _set_limits(limits: Mapping[str, float], processes: int, address_space: int) -> None:
    cpu = max(1, -int(-limits["cpu"] // 1))
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, int(limits["file_size"])),
        (resource.RLIMIT_NOFILE, int(limits["files"])),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_AS, address_space + int(limits["memory"])),
    ):
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _tasks_of(uid: int) -> int:
    """Threads that run under a uid: the kernel counts them all against the limit of each."""
    tasks = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    tasks += len(os.listdir(f"/proc/{entry.name}/task"))
    return tasks


def _reachable(path: str) -> bool:
    """Whether a user without rights of its own gets to a path."""
    place = Path(path)
    folders = place.parents if place.exists() else ()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)
