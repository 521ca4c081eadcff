"""The filter of system calls decides as meant, on both machines, by an interpreter of its own."""

import errno
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from sphere_replay import sandbox
from sphere_replay.sandbox.inside import kernel, landlock, seccomp

ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
DENY, MISSING = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
CALLS = {
    "x86_64": {
        "read": 0,
        "socket": 41,
        "socketpair": 53,
        "clone": 56,
        "kill": 62,
        "chmod": 90,
        "ptrace": 101,
        "tgkill": 234,
        "unshare": 272,
        "prlimit": 302,
        "clone3": 435,
        "shmat": 30,
        "setxattr": 188,
        "inotify": 254,
        "bind": 49,
        "setsockopt": 54,
        "mmap": 9,
        "fcntl": 72,
        "ioctl": 16,
        "prctl": 157,
        "sendmsg": 46,
    },
    "aarch64": {
        "read": 63,
        "socket": 198,
        "socketpair": 199,
        "clone": 220,
        "kill": 129,
        "chmod": 53,
        "ptrace": 117,
        "tgkill": 131,
        "unshare": 97,
        "prlimit": 261,
        "clone3": 435,
        "shmat": 196,
        "setxattr": 5,
        "inotify": 26,
        "bind": 200,
        "setsockopt": 208,
        "mmap": 222,
        "fcntl": 25,
        "ioctl": 29,
        "prctl": 167,
        "sendmsg": 211,
    },
}


def decide(code: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Run classic BPF on one call, as the kernel would."""
    wide = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *wide)
    accumulator, position = 0, 0
    while True:
        kind, then, otherwise, value = struct.unpack_from("<HBBI", code, 8 * position)
        position += 1
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif kind == 0x54:
            accumulator &= value
        elif kind == 0x06:
            return int(value)
        else:
            test = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[kind]
            position += then if test else otherwise


@pytest.mark.parametrize("machine", kernel.SUPPORTED)
@pytest.mark.parametrize(
    ("call", "arguments", "decision"),
    [
        ("read", (0, 0, 10), ALLOW),
        ("ptrace", (16, 1), DENY),
        ("socket", (2, 1), DENY),
        ("socket", (1, 1), DENY),
        ("unshare", (0x10000000,), DENY),
        ("clone", (0x01200011,), ALLOW),  # fork
        ("clone", (0x003D0F00,), ALLOW),  # a thread
        ("clone", (0x10000011,), DENY),  # a namespace of users
        ("clone3", (0, 0), MISSING),
        ("socketpair", (1, 0x80001), ALLOW),
        ("socketpair", (1, 2), DENY),
        ("socketpair", (16, 1), DENY),
        ("prlimit", (0, 7), ALLOW),
        ("prlimit", (1, 7), DENY),
        ("kill", (1, 15), ALLOW),  # other means keep signals in
        ("chmod", (0, 0), ALLOW),
        *((call, (), DENY) for call in ("shmat", "setxattr", "inotify", "bind", "setsockopt")),
        ("sendmsg", (), DENY),
        ("mmap", (0, 4096, 3, 0x22), ALLOW),  # private
        ("mmap", (0, 4096, 3, 0x01, 5), ALLOW),  # a file
        ("mmap", (0, 4096, 3, 0x21), DENY),  # shared with nothing behind it
        ("fcntl", (3, 4), ALLOW),
        ("fcntl", (3, 1031), DENY),  # a larger pipe
        ("ioctl", (1, 0x5401), ALLOW),
        ("ioctl", (1, 0x5412), 0x00050000 | errno.ENOTTY),  # typing for the user
        ("prctl", (15,), ALLOW),
        ("prctl", (4,), DENY),
    ],
)
def test_decisions(machine: str, call: str, arguments: tuple[int, ...], decision: int) -> None:
    code = seccomp.build_filter(machine, owner=False, only_self=None)
    number = CALLS[machine][call]
    assert decide(code, ARCHITECTURE[machine], number, *arguments) == decision


@pytest.mark.parametrize("machine", kernel.SUPPORTED)
def test_a_program_under_its_owners_uid_gets_less(machine: str) -> None:
    code = seccomp.build_filter(machine, owner=True, only_self=4321)

    def outcome(call: str, *arguments: int) -> int:
        return decide(code, ARCHITECTURE[machine], CALLS[machine][call], *arguments)

    assert outcome("chmod") == DENY
    assert [outcome("kill", 4321, 15), outcome("kill", 1, 15)] == [ALLOW, DENY]
    assert [outcome("tgkill", 4321, 4321), outcome("tgkill", 1, 1)] == [ALLOW, DENY]
    assert outcome("kill", (1 << 32) - 1, 15) == DENY  # kill(-1): everybody


@pytest.mark.parametrize("machine", kernel.SUPPORTED)
def test_other_instruction_sets_are_killed(machine: str) -> None:
    code = seccomp.build_filter(machine, owner=False, only_self=None)
    assert decide(code, 0x40000003, 0) == KILL  # 32-bit x86 numbers calls differently
    assert decide(code, ARCHITECTURE[machine], 0x40000000) == KILL


@pytest.mark.parametrize("machine", kernel.SUPPORTED)
def test_calls_of_kernels_to_come_are_denied(machine: str) -> None:
    code = seccomp.build_filter(machine, owner=False, only_self=None)
    outcomes = {decide(code, ARCHITECTURE[machine], number) for number in range(453, 1000)}
    assert outcomes == {DENY}


def test_the_table_of_calls_is_whole() -> None:
    for column in (0, 1):
        numbers = seccomp._numbers(seccomp._ALLOWED + seccomp._ALLOWED_TO_STRANGERS, column)
        assert len(set(numbers)) == len(numbers) > 100


def in_another_process(code: str, *arguments: str) -> str:
    """What a fresh Python prints, to whom filters and rules may happen for good."""
    start = f"import os, sys; sys.path.append({str(Path(sandbox.__file__).parent)!r})\n"
    words = [sys.executable, "-I", "-c", start + code, *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(kernel.MACHINE not in kernel.SUPPORTED, reason="unknown machine")
def test_the_kernel_takes_the_filter() -> None:
    code = """
from inside import seccomp
seccomp.install(owner=True, only_self=os.getpid())
os.kill(os.getpid(), 0)
for call in (lambda: os.kill(os.getppid(), 0), lambda: os.chmod(".", 0o755), os.getpid):
    try:
        call()
        print("allowed")
    except PermissionError:
        print("denied")
"""
    printed = in_another_process(code)
    assert printed.split() == ["denied", "denied", "allowed"]


@pytest.mark.skipif(landlock.version() == 0, reason="no landlock in this kernel")
def test_landlock_opens_one_folder_and_no_other(tmp_path: Path) -> None:
    code = """
from inside import landlock
outer = sys.argv[1]
os.mkdir(outer + "/inner")
landlock.restrict([], [], outer + "/inner")
for place in ("/inner/written", "/written"):
    try:
        open(outer + place, "w").close()
        print("written")
    except PermissionError:
        print("denied")
"""
    assert in_another_process(code, str(tmp_path)).split() == ["written", "denied"]
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
