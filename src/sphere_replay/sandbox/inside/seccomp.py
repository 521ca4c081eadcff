"""Which system calls a program may make: a filter in the kernel, which children inherit.

The filter lists what is allowed: what Python's standard library, a C library and threads need for
work within one folder. Everything else fails with EPERM, as a missing permission would, also calls
that kernels do not have yet.
"""

import ctypes
import errno
import struct
from collections.abc import Sequence

from . import kernel

# A name, and its number on x86_64 and aarch64; `-` where the machine has no such call.
_ALLOWED = """
    read 0 63          write 1 64         readv 19 65        writev 20 66
    pread64 17 67      pwrite64 18 68     preadv 295 69      pwritev 296 70
    preadv2 327 286    pwritev2 328 287   lseek 8 62         sendfile 40 71
    copy_file_range 326 285               close 3 57         close_range 436 436
    dup 32 23          dup2 33 -          dup3 292 24        pipe 22 -
    pipe2 293 59       select 23 -        pselect6 270 72    poll 7 -
    ppoll 271 73       epoll_create 213 - epoll_create1 291 20
    epoll_ctl 233 21   epoll_wait 232 -   epoll_pwait 281 22 epoll_pwait2 441 441
    eventfd 284 -      eventfd2 290 19    signalfd 282 -     signalfd4 289 74
    timerfd_create 283 85                 timerfd_settime 286 86
    timerfd_gettime 287 87

    open 2 -           openat 257 56      creat 85 -         stat 4 -
    fstat 5 80         lstat 6 -          newfstatat 262 79  statx 332 291
    access 21 -        faccessat 269 48   faccessat2 439 439 getdents 78 -
    getdents64 217 61  getcwd 79 17       chdir 80 49        fchdir 81 50
    rename 82 -        renameat 264 38    renameat2 316 276  mkdir 83 -
    mkdirat 258 34     rmdir 84 -         link 86 -          linkat 265 37
    unlink 87 -        unlinkat 263 35    symlink 88 -       symlinkat 266 36
    readlink 89 -      readlinkat 267 78  umask 95 166       flock 73 32
    fsync 74 82        fdatasync 75 83    ftruncate 77 46    fallocate 285 47
    fadvise64 221 223  statfs 137 43      fstatfs 138 44     getxattr 191 8
    lgetxattr 192 9    fgetxattr 193 10   listxattr 194 11   llistxattr 195 12
    flistxattr 196 13

    munmap 11 215      mremap 25 216      mprotect 10 226    madvise 28 233
    msync 26 227       brk 12 214         futex 202 98       futex_waitv 449 449
    membarrier 324 283 rseq 334 293       set_robust_list 273 99
    get_robust_list 274 100               set_tid_address 218 96
    arch_prctl 158 -   getrandom 318 278

    fork 57 -          vfork 58 -         execve 59 221      exit 60 93
    exit_group 231 94  wait4 61 260       waitid 247 95      setsid 112 157
    getsid 124 156     setpgid 109 154    getpgid 121 155    getpgrp 111 -
    getpid 39 172      getppid 110 173    gettid 186 178     getuid 102 174
    geteuid 107 175    getgid 104 176     getegid 108 177    getgroups 115 158
    getresuid 118 148  getresgid 120 150  getrlimit 97 163   setrlimit 160 164
    getrusage 98 165   times 100 153      getpriority 140 141
    sched_yield 24 124 sched_getaffinity 204 123             sched_getscheduler 145 120
    sched_getparam 143 121                sched_getattr 315 275
    sched_get_priority_max 146 125        sched_get_priority_min 147 126
    getcpu 309 168     uname 63 160       sysinfo 99 179

    rt_sigaction 13 134                   rt_sigprocmask 14 135
    rt_sigreturn 15 139                   rt_sigpending 127 136
    rt_sigtimedwait 128 137               rt_sigsuspend 130 133
    sigaltstack 131 132                   restart_syscall 219 128
    pause 34 -         alarm 37 -         getitimer 36 102   setitimer 38 103
    timer_create 222 107                  timer_settime 223 110
    timer_gettime 224 108                 timer_getoverrun 225 109
    timer_delete 226 111                  time 201 -         gettimeofday 96 169
    clock_gettime 228 113                 clock_getres 229 114
    nanosleep 35 101   clock_nanosleep 230 115

    sendto 44 206      recvfrom 45 207    shutdown 48 210    getsockopt 55 209
    getsockname 51 204 getpeername 52 205
"""
# Changes to files that landlock does not guard: only where no file of the host belongs to the
# program's own user.
_ALLOWED_TO_STRANGERS = """
    truncate 76 45     chmod 90 -         fchmod 91 52       fchmodat 268 53
    fchmodat2 452 452  chown 92 -         lchown 94 -        fchown 93 55
    fchownat 260 54    utime 132 -        utimes 235 -       futimesat 261 -
    utimensat 280 88
"""
# Only where other means keep signals within the sandbox.
_ALLOWED_SIGNALS = "kill 62 129  tgkill 234 131  tkill 200 130  rt_sigqueueinfo 129 138"

_CLONE, _CLONE3, _SOCKETPAIR, _PRLIMIT = (56, 220), (435, 435), (53, 199), (302, 261)
_KILL, _TGKILL = (62, 129), (234, 131)
_MMAP, _IOCTL, _FCNTL, _PRCTL = (9, 222), (16, 29), (72, 25), (157, 167)

_ARCHITECTURE = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_NEW_NAMESPACES = 0x7E02_0000  # CLONE_NEW* of mounts, cgroup, uts, ipc, user, pid and net
_FIRST_X32_CALL = 0x4000_0000
_ONLY_UNIX, _ONLY_STREAM, _TYPE_BITS = 1, 1, 0xF
_SHARED_AND_NAMELESS = 0x21
_SET_PIPE_SIZE = 1031
_TERMINALS_AND_BLOCKING = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_NAMES_OF_THREADS_AND_MEMORY = (15, 16, 0x5356_4D41)

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
    parts = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_IF_EQUAL, _ARCHITECTURE[machine], 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_IF_AT_LEAST, _FIRST_X32_CALL, 0, 1),
        _instruction(_RETURN, _KILL_PROCESS),
    ]

    def rule(numbers: tuple[int, int], *body: bytes) -> None:
        """Allow one call unless the instructions fail it."""
        parts.append(_instruction(_IF_EQUAL, numbers[column], 0, len(body) + 1))
        parts.extend([*body, _instruction(_RETURN, _ALLOW)])

    def only(values: Sequence[int], number: int) -> list[bytes]:
        """Fail unless the argument is one of these."""
        count = len(values)
        checks = [
            _instruction(_IF_EQUAL, value, count - place) for place, value in enumerate(values)
        ]
        return [*checks, _fail(number)]

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
    rule(_PRLIMIT, _argument(0), *only((0,), errno.EPERM))
    # Memory that two processes share without a file is nobody's once neither has touched it, and
    # the buffers of pipes are nobody's at all.
    nameless = _instruction(_IF_EQUAL, _SHARED_AND_NAMELESS, 0, 1)
    masked = _instruction(_AND, _SHARED_AND_NAMELESS)
    rule(_MMAP, _argument(3), masked, nameless, _fail(errno.EPERM))
    larger = _instruction(_IF_EQUAL, _SET_PIPE_SIZE, 0, 1)
    rule(_FCNTL, _argument(1), larger, _fail(errno.EPERM))
    rule(_IOCTL, _argument(1), *only(_TERMINALS_AND_BLOCKING, errno.ENOTTY))
    rule(_PRCTL, _argument(0), *only(_NAMES_OF_THREADS_AND_MEMORY, errno.EPERM))
    if only_self is not None:
        for numbers in (_KILL, _TGKILL):
            rule(numbers, _argument(0), *only((only_self,), errno.EPERM))
    allowed = _ALLOWED + ("" if owner else _ALLOWED_TO_STRANGERS)
    allowed += _ALLOWED_SIGNALS if only_self is None else ""
    for number in _numbers(allowed, column):
        parts += [_instruction(_IF_EQUAL, number, 0, 1), _instruction(_RETURN, _ALLOW)]
    return b"".join([*parts, _fail(errno.EPERM)])


def _numbers(table: str, column: int) -> list[int]:
    """The numbers in a column of a table of calls."""
    words = table.split()[1 + column :: 3]
    return [int(word) for word in words if word != "-"]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(*, owner: bool, only_self: int | None = None) -> None:
    """Filter the calls of this process and of all that it starts, for good."""
    code = build_filter(kernel.MACHINE, owner=owner, only_self=only_self)
    program = _Program(len(code) // 8, code)
    kernel.no_new_privileges()
    kernel.prctl("a filter of system calls", _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program))
