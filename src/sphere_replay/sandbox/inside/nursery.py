"""The warm process that forks programs' processes; it has never seen a test, nor will its forks."""

import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping
from typing import Any

from . import confine, kernel, tree
from .candidate import Side
from .wire import Channel

_WARM = (
    *("abc", "bisect", "collections.abc", "contextlib", "copy", "dataclasses", "datetime"),
    *("decimal", "enum", "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math"),
    *("operator", "queue", "random", "re", "statistics", "string", "textwrap", "threading"),
    *("time", "typing", "ctypes"),
)
"""What programs import most; a fork has it at once."""
_FORKED = b"+"


class Nursery:
    """The nursery as the server sees it."""

    def __init__(self, confinement: confine.Confinement, folder: str) -> None:
        self._control, control = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self._control.close()
            _main(control, confinement, folder)
        control.close()
        self.baseline = int.from_bytes(self._control.recv(8), "big")
        """Bytes of memory that every fork starts with."""

    def start(
        self, program: bytes, limits: Mapping[str, float], uid: int | None, wire: int, output: int
    ) -> None:
        """Fork a process that runs a program, with these two descriptors."""
        head = json.dumps({"limits": dict(limits), "uid": uid, "size": len(program)}).encode()
        socket.send_fds(self._control, [len(head).to_bytes(4, "big")], [wire, output])
        self._control.sendall(head + program)
        # Once it is there, whoever ends all processes ends it too.
        if self._control.recv(1) != _FORKED:
            raise RuntimeError("the process that forks programs has ended")


def _main(control: socket.socket, confinement: confine.Confinement, folder: str) -> None:
    kernel.die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that end leave nothing behind
    for name in _WARM:
        importlib.import_module(name)
    confinement = confine.settled(confinement)
    gc.collect()
    gc.freeze()  # the collector of a fork leaves these pages shared
    control.sendall(tree.anonymous_memory("self").to_bytes(8, "big"))
    while True:
        size, descriptors, _, _ = socket.recv_fds(control, 4, 2)
        if len(size) < 4:
            os._exit(0)
        head = json.loads(_exactly(control, int.from_bytes(size, "big")))
        program = _exactly(control, head["size"])
        if os.fork() == 0:
            control.detach()
            _become(confinement, folder, head, program, *descriptors)
        control.sendall(_FORKED)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(
    confinement: confine.Confinement,
    folder: str,
    head: Mapping[str, Any],
    program: bytes,
    wire: int,
    output: int,
) -> None:
    confine.rewire(output, wire)
    channel = Channel(socket.socket(fileno=confine.FIRST))
    try:
        confine.enter(confinement, head["uid"], folder, head["limits"])
        with open("solution.py", "wb") as file:
            file.write(program)
        tempfile.tempdir = folder
        sys.path.insert(0, folder)
    except BaseException:
        channel.send(json.dumps(["refused", traceback.format_exc(limit=-3)]))
        os._exit(1)
    channel.send('["ready",0]')
    try:
        Side(channel).serve()
    finally:
        os._exit(1)


def _exactly(control: socket.socket, size: int) -> bytes:
    pieces = []
    while size:
        piece = control.recv(min(size, 1 << 20))
        if not piece:
            os._exit(0)
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
