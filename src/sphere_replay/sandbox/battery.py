"""Lets the hostile programs loose under an isolation, and looks whether each was contained."""

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .hostile import CHEATS, Hostile, battery
from .inside import kernel
from .inside.tree import descendants
from .limits import Limits, Verdict, verdict_from
from .names import only_nodes, visible_tests
from .worker import Worker

_SLACK = 5.0
"""Seconds beyond its wall-clock limit that a run may take on a busy machine."""


@dataclass(frozen=True)
class Finding:
    """What became of one hostile program."""

    name: str
    kind: str
    """The class of what it tried."""
    contained: bool
    ending: str
    seconds: float
    why: str
    """What was wrong, if it was not contained."""


def prove(
    worker: Worker,
    report: Callable[[int, int, str], None] | None = None,
    judge: str = "strict",
    kinds: Sequence[str] = (),
) -> list[Finding]:
    """Run the battery on a worker.

    Args:
        worker: Where.
        report: Told (programs done, all programs, the next one's name).
        judge: `strict`, or `shared`: those after the verdict that this judge withstands.
        kinds: Only these classes; (): all.
    """
    with bait_laid() as bait:
        cases = [case for case in battery(bait.facts) if not kinds or case.kind in kinds]
        if judge == "shared":
            cases = [case for case in cases if case.kind in CHEATS and not case.strict_only]
        findings = []
        for number, case in enumerate(cases):
            if report is not None:
                report(number, len(cases), case.name)
            findings.append(try_out(worker, case, bait, judge))
        return findings


def try_out(worker: Worker, case: Hostile, bait: "Bait", judge: str = "strict") -> Finding:
    """Run one hostile program, then look at its verdict and at everything it could have touched."""
    limits = Limits(**{"wall": 10.0, **case.limits})  # type: ignore[arg-type]  # checked by Limits
    before = set(descendants(worker.pid))
    start = time.monotonic()
    tests = case.tests if case.nodes is None else only_nodes(case.tests, case.nodes)
    answer = worker.ask(case.program, tests, case.nodes, limits, judge)
    seconds = time.monotonic() - start
    verdict = verdict_from(answer, visible_tests(case.tests))
    left = set(descendants(worker.pid)) - before
    why = _fault(case, verdict) or bait.damage()
    if left:
        why = f"processes {sorted(left)} survived"
    elif seconds > limits.wall + _SLACK:
        why = f"it took {seconds:.1f} s, {limits.wall} s were allowed"
    return Finding(case.name, case.kind, not why, verdict.ending, seconds, why)


def _fault(case: Hostile, verdict: Verdict) -> str:
    outcomes = ", ".join(f"{node} {outcome}" for node, outcome in verdict.nodes.items())
    if case.probe:
        said = " ".join(verdict.messages.values()) or verdict.why
        return "" if verdict.passed else f"{verdict.ending}; {outcomes}: {said} {verdict.output}"
    if verdict.passed:
        return "it passed"
    if verdict.ending == "broken" or (case.endings and verdict.ending not in case.endings):
        return f"it ended as {verdict.ending} ({outcomes}): {verdict.why}"
    return ""


@dataclass(frozen=True)
class Bait:
    """Things of ours that a program must not reach, and a look at whether it did."""

    facts: dict[str, object]
    secret: Path
    process: "subprocess.Popen[bytes]"
    visits: list[str]

    def damage(self) -> str:
        """What has been touched; empty if nothing was."""
        if self.process.poll() is not None:
            return "a process of the host was killed"
        if self.visits:
            return f"a socket of the host was reached: {self.visits[0]}"
        names = sorted(path.name for path in self.secret.parent.iterdir())
        if names != ["secret", "socket"]:
            return f"a folder of the host was changed: {names}"
        if self.secret.read_text() != "secret" or self.secret.stat().st_mode & 0o777 != 0o644:
            return "a file of the host was changed"
        return ""


@contextmanager
def bait_laid() -> Iterator[Bait]:
    """A file, a folder, a process and sockets, open to all users of this machine."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sphere-bait-")))
        folder.chmod(0o777)
        secret = folder / "secret"
        secret.write_text("secret")
        secret.chmod(0o644)
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        )
        stack.callback(process.kill)
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))),
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
            stack.enter_context(socket.socket(socket.AF_UNIX)),
            stack.enter_context(socket.socket(socket.AF_UNIX)),
        ]
        port = listeners[0].getsockname()[1]
        abstract = folder.name
        listeners[1].bind(("127.0.0.1", port))
        listeners[2].bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        listeners[3].bind(f"\0{abstract}")
        visits: list[str] = []
        for name, listener in zip(("TCP", "UDP", "local", "abstract"), listeners, strict=True):
            stack.callback(_listen(name, listener, visits))
        facts: dict[str, object] = {
            "secret": str(secret),
            "folder": str(folder),
            "pid": process.pid,
            "port": port,
            "socket": str(folder / "socket"),
            "abstract": abstract,
            "shm": _segment(stack),
        }
        yield Bait(facts, secret, process, visits)


def _segment(stack: ExitStack) -> int:
    """The id of shared memory that everyone may read and write; -1 where there is none."""
    try:
        number = kernel.shared_memory(4096)
    except (OSError, AttributeError):
        return -1
    stack.callback(kernel.remove_shared_memory, number)
    return number


def _listen(name: str, listener: socket.socket, visits: list[str]) -> Callable[[], None]:
    """Note whoever comes; returns a call that stops listening."""
    stopped = threading.Event()
    listener.settimeout(0.1)
    if listener.type == socket.SOCK_STREAM:
        listener.listen()

    def wait() -> None:
        while not stopped.is_set():
            try:
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                else:
                    listener.recv(1)
                visits.append(name)
            except TimeoutError:
                continue

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()

    def stop() -> None:
        stopped.set()
        thread.join()

    return stop
