"""Which system calls a program may make: a filter in the kernel, which children inherit.

Denied calls fail with EPERM, as a missing permission would, so that programs can handle it. The
filter lists what is denied: Python itself needs too many calls, which change with every libc.
"""

import ctypes
import errno
import struct

from . import kernel

# name: (x86_64, aarch64); None where the machine has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # Other processes: looking into them, and changing how they run.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # Network and local sockets; `socketpair` has a rule of its own.
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Mounts and namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    # Memory that no limit counts, or that outlives the process.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # Keys, and large parts of the kernel that no program here needs.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    # The machine itself.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}

# Changes to files that landlock does not guard, where the files' owner is the program's own user.
_DENIED_TO_OWNERS: dict[str, tuple[int | None, int | None]] = {
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
_DENIED_SIGNALS: dict[str, tuple[int | None, int | None]] = {
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
_CLONE, _CLONE3, _SOCKETPAIR, _PRLIMIT = (56, 220), (435, 435), (53, 199), (302, 261)
_KILL, _TGKILL = (62, 129), (234, 131)

_ARCHITECTURE = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_NEW_NAMESPACES = 0x7E02_0000  # CLONE_NEW* of mounts, cgroup, uts, ipc, user, pid and net
_FIRST_X32_CALL = 0x4000_0000
_ONLY_UNIX, _ONLY_STREAM, _TYPE_BITS = 1, 1, 0xF

_ALLOW, _KILL_PROCESS = 0x7FFF_0000, 0x8000_0000
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, then, otherwise, value)


def _fail(number: int) -> bytes:
    return _instruction(_RETURN, 0x0005_0000 | number)


def _argument(index: int) -> bytes:
    """Load the low half of an argument: all that these rules compare are 32-bit numbers."""
    return _instruction(_LOAD, _ARGUMENTS_AT + 8 * index)


def build_filter(machine: str, *, owner: bool, only_self: int | None) -> bytes:
    """The filter as the kernel wants it.

    Args:
        machine: One of `kernel.SUPPORTED`.
        owner: The program runs as the user who started it, whose files it must not change.
        only_self: Where nothing else guards other processes from signals: the pid of the program,
            which is then the only one that may be signalled.
    """
    column = kernel.SUPPORTED.index(machine)
    denied = dict(_DENIED)
    if owner:
        denied |= _DENIED_TO_OWNERS
    if only_self is not None:
        denied |= _DENIED_SIGNALS
    load_number = _instruction(_LOAD, _NUMBER_AT)
    parts = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_IF_EQUAL, _ARCHITECTURE[machine], 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
        load_number,
        _instruction(_IF_AT_LEAST, _FIRST_X32_CALL, 0, 1),
        _instruction(_RETURN, _KILL_PROCESS),
    ]
    for numbers in denied.values():
        number = numbers[column]
        if number is not None:
            parts += [_instruction(_IF_EQUAL, number, 0, 1), _fail(errno.EPERM)]

    def rule(numbers: tuple[int, int], *body: bytes) -> None:
        """Instructions for one call, which end in `_fail` or fall through to the next rule."""
        parts.append(_instruction(_IF_EQUAL, numbers[column], 0, len(body) + 1))
        parts.extend([*body, load_number])

    # The flags of clone3 lie in memory, out of reach for a filter; libc falls back to clone.
    rule(_CLONE3, _fail(errno.ENOSYS))
    any_namespace = _instruction(_IF_ANY_BIT, _NEW_NAMESPACES, 0, 1)
    rule(_CLONE, _argument(0), any_namespace, _fail(errno.EPERM))
    # Event loops need pairs of sockets; a datagram socket of a pair could reach other addresses.
    rule(
        _SOCKETPAIR,
        _argument(0),
        _instruction(_IF_EQUAL, _ONLY_UNIX, 0, 3),
        _argument(1),
        _instruction(_AND, _TYPE_BITS),
        _instruction(_IF_EQUAL, _ONLY_STREAM, 1, 0),
        _fail(errno.EPERM),
    )
    rule(_PRLIMIT, _argument(0), _instruction(_IF_EQUAL, 0, 1, 0), _fail(errno.EPERM))
    if only_self is not None:
        for numbers in (_KILL, _TGKILL):
            itself = _instruction(_IF_EQUAL, only_self, 1, 0)
            rule(numbers, _argument(0), itself, _fail(errno.EPERM))
    return b"".join([*parts, _instruction(_RETURN, _ALLOW)])


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(*, owner: bool, only_self: int | None = None) -> None:
    """Filter the calls of this process and of all that it starts, for good."""
    code = build_filter(kernel.MACHINE, owner=owner, only_self=only_self)
    program = _Program(len(code) // 8, code)
    kernel.no_new_privileges()
    kernel.prctl("a filter of system calls", _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program))
