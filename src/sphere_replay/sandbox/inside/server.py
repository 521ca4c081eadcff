"""The warm process of a worker: imports pytest once, then forks for every program.

Requests come on standard input and answers go to standard output, each a line of JSON. No program
and no test ever runs in this process; it decides what reports are worth.

A run is judged `strict`, by tests in a fork of this process and the program in one of the
nursery's, with a wire between them; or `shared`, both in one interpreter, for tests that need it.
"""

import base64
import gc
import io
import json
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest

from . import confine, guard, kernel, module, reporter, tree
from .canaries import Canaries
from .judge import Judge
from .nursery import Nursery
from .peer import Peer
from .scratch import Scratch
from .suite import Suite
from .watch import Ending, HostGone, Watch
from .wire import Channel

_REPORTS, _WIRE = confine.FIRST, confine.FIRST + 1
_FORGOTTEN = ("ctypes", "_ctypes")


class Server:
    """One program at a time, each in forks of its own."""

    def __init__(
        self, confinement: confine.Confinement, scratch: Scratch, nursery: Nursery
    ) -> None:
        self._confinement, self._scratch, self._nursery = confinement, scratch, nursery
        self.folder = scratch.folder("tests")

    def serve(self) -> reporter.Run:
        """Answer requests until there are no more; returns in forks only, ready to run."""
        self._snapshot = guard.Snapshot()
        kernel.adopt_orphans()
        gc.collect()
        gc.freeze()  # the collector of a fork leaves these pages shared
        self._baselines = {
            os.getpid(): tree.anonymous_memory("self"),
            self._nursery.pid: self._nursery.baseline,
        }
        _answer({"pytest": pytest.__version__, "folder": self._scratch.outer})
        requests = sys.stdin.buffer
        while line := requests.readline():
            request = json.loads(line)
            try:
                answer = self._run(request)
            except HostGone:
                break
            if isinstance(answer, reporter.Run):
                return answer
            _answer(answer)
        self._scratch.close()
        os._exit(0)

    def _run(self, request: Mapping[str, Any]) -> dict[str, object] | reporter.Run:
        strict = request["judge"] == "strict"
        canaries = None if strict else Canaries.among(request["tests"])
        judge = Judge(canaries)
        start = time.monotonic()
        ending = self._supervise(request, judge, strict)
        if isinstance(ending, reporter.Run):
            return ending
        self._scratch.renew()
        judge.close(complete=ending.kind == "finished")
        return {
            "ending": ending.kind,
            "output": ending.output,
            "collected": judge.collected,
            "outcomes": judge.outcomes,
            "messages": judge.messages,
            "uncollected": judge.uncollected,
            "refused": judge.refused,
            "fraud": judge.fraud,
            "seconds": time.monotonic() - start,
        }

    def _supervise(
        self, request: Mapping[str, Any], judge: Judge, strict: bool
    ) -> Ending | reporter.Run:
        """Run a program and watch it; returns a `Run` in the fork that is to become the tests."""
        reports, report_end = os.pipe()
        output, output_end = os.pipe()
        program = base64.b64decode(request["program"])
        wire: socket.socket | None = None
        if strict:
            wire, far_end = socket.socketpair()
            uid = confine.throw_away_uid(1)
            limits = request["limits"]
            self._nursery.start(program, limits, uid, far_end.fileno(), output_end)
            far_end.close()
        process = os.fork()
        if process == 0:
            return self._become_tests(
                request, program, judge.canaries, report_end, output_end, wire
            )
        if wire is not None:
            wire.close()
        os.close(report_end)
        os.close(output_end)
        try:
            for descriptor in (reports, output):
                os.set_blocking(descriptor, False)
            return Watch(
                process,
                reports,
                output,
                sys.stdin.fileno(),
                request["limits"],
                judge,
                self._scratch.watched,
                self._baselines,
            ).until_the_end()
        finally:
            os.close(reports)
            os.close(output)

    def _become_tests(
        self,
        request: Mapping[str, Any],
        program: bytes,
        canaries: Canaries | None,
        report_end: int,
        output_end: int,
        wire: socket.socket | None,
    ) -> reporter.Run:
        """The fork confines itself; if any step fails, it ends."""
        folder, limits = self.folder, request["limits"]
        given = (report_end,) if wire is None else (report_end, wire.detach())
        confine.rewire(output_end, *given)
        try:
            confine.enter(self._confinement, confine.throw_away_uid(0), folder, limits)
            tests = request["tests"] if canaries is None else canaries.added_to(request["tests"])
            with open(reporter.TEST_FILE, "w", encoding="utf-8") as file:
                file.write(tests)
            tempfile.tempdir = folder
            sys.path.insert(0, folder)
            if wire is None:
                with open("solution.py", "wb") as source:
                    source.write(program)
        except BaseException:
            guard.plain_reports(_REPORTS)("refused", traceback.format_exc(limit=-3))
            os._exit(1)
        if wire is not None:
            report = guard.plain_reports(_REPORTS)
            module.install(_peer(report), tests)
            return reporter.Run(request["nodes"], None, request["only_collect"], report)
        for name in [name for name in sys.modules if name.partition(".")[0] in _FORGOTTEN]:
            del sys.modules[name]
        path = os.path.join(folder, reporter.TEST_FILE)
        guard.arm(self._snapshot, Suite(tests, path), path, _REPORTS)
        return reporter.Run(request["nodes"], canaries, request["only_collect"], guard.report)


def _peer(report: reporter.Report) -> Peer:
    """The program at the other end of the wire; what is wrong there ends the run here."""

    def broken(kind: str, why: str) -> NoReturn:
        if kind:
            report(kind, why)
        os._exit(0)

    return Peer(Channel(socket.socket(fileno=_WIRE)), broken)


def _answer(content: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def serve(confinement: confine.Confinement, scratch: Scratch, nursery: Nursery) -> None:
    """Start pytest, and answer requests from within it."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # forks inherit it, and end without a flush
        sys.stdout.reconfigure(line_buffering=True, errors="replace")
    reporter.warm_up()
    server = Server(confine.settled(confinement), scratch, nursery)
    reporter.serve(server.serve, server.folder)
