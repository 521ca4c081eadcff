"""The warm process of a worker: imports pytest once, then forks for every program.

Requests come on standard input and answers go to standard output, each a line of JSON. No program
ever runs in this process; it decides what a program's reports are worth.
"""

import base64
import gc
import io
import json
import os
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from typing import Any

import pytest

from . import confine, guard, kernel, reporter, tree
from .judge import Judge
from .watch import Ending, HostGone, Watch

_CANARY = """

def {first}():
    assert 0 == 1


def {last}():
    assert [0] == [1]
"""


class Server:
    """One program at a time, each in a fork of its own."""

    def __init__(self, confinement: confine.Confinement) -> None:
        self._confinement = confinement
        self._in_memory = confinement.isolation == "bubblewrap"
        self.folder = confine.FOLDER_IN_MEMORY
        self._outer: str | None = None
        if not self._in_memory:
            # Nobody can list the outer folder; the inner one belongs to the program.
            self._outer = tempfile.mkdtemp(prefix="sphere-sandbox-", dir=_scratch_place())
            os.chmod(self._outer, 0o711)
            self.folder = f"{self._outer}/run"
            os.mkdir(self.folder, 0o700)

    def serve(self) -> reporter.Run:
        """Answer requests until there are no more; returns in forks only, ready to run."""
        self._snapshot = guard.Snapshot()
        self._baseline = tree.anonymous_memory("self")
        kernel.adopt_orphans()
        gc.collect()
        gc.freeze()  # the collector of a fork leaves these pages shared
        _answer({"pytest": pytest.__version__, "folder": self._outer})
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
        if self._outer is not None:
            _remove(self.folder, self._outer)
            os.rmdir(self._outer)
        os._exit(0)

    def _run(self, request: Mapping[str, Any]) -> dict[str, object] | reporter.Run:
        token = secrets.token_hex(6)
        canaries = (f"test_first_{token}", f"test_last_{token}")
        judge = Judge(canaries)
        start = time.monotonic()
        ending = self._supervise(request, judge)
        if ending is None:
            return reporter.Run(request["nodes"], canaries, request["only_collect"])
        if self._outer is not None:
            _remove(self.folder, self._outer)
            os.mkdir(self.folder, 0o700)
        judge.close(complete=ending.kind == "finished")
        return {
            "ending": ending.kind,
            "output": ending.output,
            "collected": _without(judge.collected, canaries),
            "outcomes": _without(judge.outcomes, canaries),
            "messages": _without(judge.messages, canaries),
            "uncollected": judge.uncollected,
            "refused": judge.refused,
            "fraud": judge.fraud,
            "seconds": time.monotonic() - start,
        }

    def _supervise(self, request: Mapping[str, Any], judge: Judge) -> Ending | None:
        """Run a program and watch it; None in the fork that is to become the program."""
        reports, report_end = os.pipe()
        output, output_end = os.pipe()
        uid = confine.throw_away_uid()
        process = os.fork()
        if process == 0:
            self._become_program(request, judge, uid, report_end, output_end)
            return None
        os.close(report_end)
        os.close(output_end)
        try:
            for descriptor in (reports, output):
                os.set_blocking(descriptor, False)
            requests, limits = sys.stdin.fileno(), request["limits"]
            on_disk = None if self._in_memory else self.folder
            return Watch(
                process, reports, output, requests, limits, judge, on_disk, self._baseline
            ).until_the_end()
        finally:
            os.close(reports)
            os.close(output)

    def _become_program(
        self,
        request: Mapping[str, Any],
        judge: Judge,
        uid: int | None,
        report_end: int,
        output_end: int,
    ) -> None:
        """The fork confines itself; if any step fails, it ends."""
        try:
            os.setsid()
            _rewire(report_end, output_end)
            if self._in_memory:
                confine.enter_namespaces(uid, request["limits"])
                program = os.fork()  # the first process of the namespace of pids
                if program:
                    os.waitpid(program, 0)
                    os._exit(0)
            elif uid is not None:
                os.chown(self.folder, uid, uid)
            os.chdir(self.folder)
            confine.lock(self._confinement, uid, self.folder, request["limits"])
            _write_files(request, judge)
        except BaseException:
            guard.refuse(_REPORTS, traceback.format_exc(limit=-3))
            os._exit(1)
        tempfile.tempdir = self.folder
        sys.path.insert(0, self.folder)
        for name in [name for name in sys.modules if name.partition(".")[0] in _FORGOTTEN]:
            del sys.modules[name]
        guard.arm(self._snapshot, _REPORTS)


_REPORTS = 3
"""The descriptor of reports; after 0, 1 and 2 the only one that a program finds open."""
_FORGOTTEN = ("ctypes", "_ctypes")


def _scratch_place() -> str | None:
    """In memory if it can be had: a disk takes seconds to remove what a program leaves behind."""
    memory = "/dev/shm"
    return memory if os.access(memory, os.W_OK | os.X_OK) else None


def _remove(folder: str, beside: str) -> None:
    """Remove a folder whose processes have all ended, however deep and closed it is.

    Folders within it are moved `beside` it first: no path gets long, and nothing recurses.
    """
    pending, moved = [folder], 0
    while pending:
        place = pending.pop()
        os.chmod(place, 0o700)
        for entry in list(os.scandir(place)):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)  # moving a folder writes to it
                moved += 1
                pending.append(f"{beside}/{moved}")
                os.rename(entry.path, pending[-1])
            else:
                os.unlink(entry.path)
        os.rmdir(place)


def _rewire(report_end: int, output_end: int) -> None:
    """Nothing to read, everything printed into one pipe, reports on `_REPORTS`; close the rest."""
    high = 100
    for source, target in ((report_end, high), (output_end, high + 1)):
        os.dup2(source, target)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (high + 1, 1), (high + 1, 2), (high, _REPORTS)):
        os.dup2(source, target, inheritable=target != _REPORTS)
    os.closerange(_REPORTS + 1, 1 << 16)


def _write_files(request: Mapping[str, Any], judge: Judge) -> None:
    first, last = judge.canaries
    with open("solution.py", "wb") as program:
        program.write(base64.b64decode(request["program"]))
    with open(reporter.TEST_FILE, "w", encoding="utf-8") as tests:
        tests.write(request["tests"] + _CANARY.format(first=first, last=last))
    # No home, no path: only what points programs at the one folder they may write to.
    os.environ.clear()
    os.environ["TMPDIR"] = os.environ["HOME"] = os.getcwd()


def _without(found: Any, canaries: tuple[str, str]) -> Any:
    if isinstance(found, list):
        return [node for node in found if node not in canaries]
    if isinstance(found, dict):
        return {node: value for node, value in found.items() if node not in canaries}
    return found


def _answer(content: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Start with the confinement that the command line gives, as JSON."""
    settings = json.loads(sys.argv[1])
    if isinstance(sys.stdout, io.TextIOWrapper):  # forks inherit it, and end without a flush
        sys.stdout.reconfigure(line_buffering=True, errors="replace")
    reporter.warm_up()
    # pytest is loaded: from now on programs find the standard library and nothing else.
    sys.path[:] = [path for path in sys.path if path not in settings["packages"]]
    sys.path_importer_cache.clear()
    confinement = confine.Confinement(
        settings["isolation"], tuple(settings["readable"]), confine.address_space()
    )
    server = Server(confinement)
    reporter.serve(server.serve, server.folder)
