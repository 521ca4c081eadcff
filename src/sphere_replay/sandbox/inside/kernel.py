"""The few system calls that Python has no functions for, through ctypes."""

import ctypes
import errno
import functools
import os
import platform

MACHINE = platform.machine()
SUPPORTED = ("x86_64", "aarch64")
"""Machines whose system call numbers are known here."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522

NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS = 0x0002_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000
READ_ONLY, NO_SETUID, NO_DEVICES, NO_EXECUTE = 1, 2, 4, 8
CAP_DAC_READ_SEARCH = 2


@functools.cache
def _libc() -> ctypes.CDLL:
    # When first needed: other systems can import this module, to be told that it is not for them.
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


class KernelError(OSError):
    """A system call that the kernel refused."""


def checked(what: str, result: int) -> int:
    """The result; an error that says which step failed if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        name = errno.errorcode.get(number, str(number))
        raise KernelError(number, f"{what}: {name}, {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *arguments: object) -> int:
    """Any system call; `what` names it in errors."""
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return checked(what, _libc().syscall(ctypes.c_long(number), *wide))


def prctl(what: str, option: int, *arguments: object) -> None:
    """Change something about this process."""
    wide = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    wide += [ctypes.c_ulong(0)] * (4 - len(wide))
    checked(what, _libc().prctl(ctypes.c_int(option), *wide))


def die_with_parent() -> None:
    """Be killed when the process that forked this one ends; undone by a change of the uid."""
    prctl("die with the parent", _PR_SET_PDEATHSIG, 9)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has ended, so that none gets away."""
    prctl("adopt orphans", _PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    """Set-uid programs give nothing from now on; the kernel demands it before filters."""
    prctl("give up new privileges", _PR_SET_NO_NEW_PRIVS, 1)


def unshare(flags: int) -> None:
    """Move this process (its children, for pids) into new namespaces."""
    checked("new namespaces", _libc().unshare(ctypes.c_int(flags)))


def mount_memory(target: str, flags: int, options: str) -> None:
    """Mount a fresh file system in memory."""
    arguments = (b"tmpfs", target.encode(), b"tmpfs", ctypes.c_ulong(flags), options.encode())
    checked(f"a file system in memory at {target}", _libc().mount(*arguments))


def become(uid: int, keep: tuple[int, ...] = ()) -> None:
    """Leave root for another uid for good, with at most these capabilities."""
    if keep:
        prctl("keep capabilities", _PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # A changed uid hides /proc/self from the process itself, and namespaces are set up there.
    prctl("show itself", _PR_SET_DUMPABLE, 1)
    limit_capabilities(keep)


def limit_capabilities(keep: tuple[int, ...] = ()) -> None:
    """Give up all capabilities but these."""
    bits = sum(1 << capability for capability in keep)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = bits & 0xFFFF_FFFF, bits >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    syscall("give up capabilities", _SYS_CAPSET[MACHINE], header, data)


def shared_memory(size: int) -> int:
    """The id of a new segment of System V's shared memory, open to all."""
    return checked("shared memory", _libc().shmget(0, ctypes.c_size_t(size), 0o1666))


def remove_shared_memory(number: int) -> None:
    """Remove a segment."""
    checked("remove shared memory", _libc().shmctl(number, 0, None))
