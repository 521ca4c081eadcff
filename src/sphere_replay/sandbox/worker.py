"""One warm worker from the outside: started, asked, and replaced if it fails."""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from . import isolation
from .cgroup import ControlGroup
from .inside.tree import descendants
from .limits import Limits

_START_SECONDS = 60.0
_GRACE = 30.0
"""Seconds beyond the wall-clock limit after which the worker itself is taken to be stuck."""


class WorkerError(RuntimeError):
    """The sandbox itself failed; says nothing about a program."""


class Worker:
    """A server process under an isolation; takes one program at a time."""

    def __init__(self, name: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        command = isolation.command(name)
        self._group = ControlGroup.make()
        self._process = subprocess.Popen(
            command if self._group is None else self._group.joined(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={},
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
        self._folder: str | None = None
        try:
            ready = self._receive(_START_SECONDS)
        except WorkerError as error:
            self.close()
            raise WorkerError(f"{name} does not start: {error}") from None
        self.pytest = str(ready["pytest"])
        self._folder = ready["folder"]
        if self._group is not None:
            self._group.settle()

    @property
    def memory(self) -> str:
        """What keeps programs to their limit of memory, in words."""
        if self._group is not None:
            return "a control group (memory.max, memory.swap.max=0, pids.max)"
        return (
            "limits of the kernel per process and the worker's account of all of them "
            "(no control group of version 2 may be made here)"
        )

    @property
    def pid(self) -> int:
        """The process that was started (bubblewrap, or the server itself)."""
        return self._process.pid

    def ask(
        self,
        program: bytes,
        tests: str,
        nodes: Sequence[str] | None,
        limits: Limits,
        judge: str = "strict",
        *,
        only_collect: bool = False,
    ) -> dict[str, Any]:
        """Run a program; returns the server's answer."""
        request = {
            "program": base64.b64encode(program).decode("ascii"),
            "tests": tests,
            "nodes": None if nodes is None else list(nodes),
            "limits": asdict(limits),
            "judge": judge,
            "only_collect": only_collect,
        }
        killed = 0
        if self._group is not None:
            self._group.limit(limits)
            killed = self._group.kills()
        try:
            self._write(json.dumps(request).encode() + b"\n")
        except (BrokenPipeError, ValueError):
            raise WorkerError(f"the worker has ended: {self._said()}") from None
        answer = self._receive(limits.wall + _GRACE)
        if self._group is not None and self._group.kills() > killed:
            answer["ending"] = "memory"
        return answer

    def close(self) -> None:
        """End the server, and with it whatever it runs."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        if self._folder is not None:  # removed by the server, unless that was killed
            shutil.rmtree(self._folder, ignore_errors=True)
        self._errors.close()
        if self._group is not None:
            self._group.close()

    def kill(self) -> None:
        """End everything at once, without a chance to clean up."""
        for process in [self.pid, *descendants(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _receive(self, patience: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout
        deadline = time.monotonic() + patience
        chunks = []
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise WorkerError(f"the worker does not answer: {self._said()}")
            chunk = pipe.read(1 << 16)
            if not chunk:
                raise WorkerError(f"the worker has ended: {self._said()}")
            chunks.append(chunk)
            if chunk.endswith(b"\n"):
                answer: dict[str, Any] = json.loads(b"".join(chunks))
                return answer

    def _said(self) -> str:
        """The last line on the worker's standard error."""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
