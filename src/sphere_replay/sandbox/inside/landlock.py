"""Which files a program may touch where there are no mounts of its own: landlock, by raw calls."""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from . import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every machine
_VERSION, _PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHARACTER, _MAKE_SOCKET, _MAKE_FIFO, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 10, 1 << 11
_REFER, _TRUNCATE, _DEVICE_CONTROL = 1 << 13, 1 << 14, 1 << 15
_ALL_OF_FIRST = (1 << 13) - 1
_RIGHTS_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CONTROL
_TCP = 3
_OUTSIDE_SOCKETS_AND_SIGNALS = 3

SIGNALS_SINCE = 6
"""The first version that keeps signals within the sandbox."""


def version() -> int:
    """The version of landlock that this kernel offers; 0: none."""
    try:
        return kernel.syscall("landlock", _CREATE, None, 0, _VERSION)
    except kernel.KernelError:
        return 0


def restrict(readable: Iterable[str], devices: Iterable[str], folder: str) -> None:
    """Leave this process and its children `readable` to read, `folder` to write, and no TCP."""
    known = version()
    handled = _ALL_OF_FIRST
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _DEVICE_CONTROL)):
        handled |= right if known >= since else 0
    attributes = struct.pack("<Q", handled)
    if known >= 4:
        attributes += struct.pack("<Q", _TCP)
    if known >= SIGNALS_SINCE:
        attributes += struct.pack("<Q", _OUTSIDE_SOCKETS_AND_SIGNALS)
    size = len(attributes)
    rules = kernel.syscall("landlock rules", _CREATE, ctypes.c_char_p(attributes), size, 0)
    special = _EXECUTE | _MAKE_CHARACTER | _MAKE_BLOCK | _MAKE_SOCKET | _MAKE_FIFO
    try:
        for path in readable:
            _allow(rules, path, handled & (_EXECUTE | _READ_FILE | _READ_DIR))
        for path in devices:
            _allow(rules, path, _READ_FILE | _WRITE_FILE)
        _allow(rules, folder, handled & ~special & ~_DEVICE_CONTROL)
        kernel.no_new_privileges()
        kernel.syscall("landlock", _RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _RIGHTS_OF_FILES
        rule = ctypes.c_char_p(struct.pack("<Qi", rights, place))
        kernel.syscall(f"landlock rule for {path}", _ADD, rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(place)
