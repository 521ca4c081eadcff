"""Lets the hostile programs loose under an isolation, and looks whether each was contained."""

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .hostile import Hostile, battery
from .inside.tree import descendants
from .limits import Limits, Verdict, verdict_from
from .names import visible_tests
from .worker import Worker

_SLACK = 5.0
"""Seconds beyond its wall-clock limit that a run may take on a busy machine."""


@dataclass(frozen=True)
class Finding:
    """What became of one hostile program."""

    name: str
    contained: bool
    ending: str
    seconds: float
    why: str
    """What was wrong, if it was not contained."""


def prove(
    worker: Worker, report: Callable[[int, int, str], None] = lambda done, total, name: None
) -> list[Finding]:
    """Run the whole battery on a worker."""
    with bait_laid() as bait:
        cases = battery(bait.facts)
        findings = []
        for number, case in enumerate(cases):
            report(number, len(cases), case.name)
            findings.append(try_out(worker, case, bait))
        return findings


def try_out(worker: Worker, case: Hostile, bait: "Bait") -> Finding:
    """Run one hostile program, then look at its verdict and at everything it could have touched."""
    limits = Limits(**{"wall": 10.0, **case.limits})  # type: ignore[arg-type]  # checked by Limits
    program = case.program.encode() if isinstance(case.program, str) else case.program
    before = set(descendants(worker.pid))
    start = time.monotonic()
    answer = worker.ask(program, case.tests, None, limits)
    seconds = time.monotonic() - start
    verdict = verdict_from(answer, visible_tests(case.tests))
    left = set(descendants(worker.pid)) - before
    why = _fault(case, verdict) or bait.damage()
    if left:
        why = f"processes {sorted(left)} survived"
    elif seconds > limits.wall + _SLACK:
        why = f"it took {seconds:.1f} s, {limits.wall} s were allowed"
    return Finding(case.name, not why, verdict.ending, seconds, why)


def _fault(case: Hostile, verdict: Verdict) -> str:
    outcomes = ", ".join(f"{node} {outcome}" for node, outcome in verdict.nodes.items())
    if not case.endings:
        said = " ".join(verdict.messages.values()) or verdict.why
        return "" if verdict.passed else f"{verdict.ending}; {outcomes}: {said}"
    if verdict.passed:
        return "it passed"
    if verdict.ending not in case.endings:
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
        abstract = f"\0{folder.name}"
        listeners[1].bind(("127.0.0.1", port))
        listeners[2].bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        listeners[3].bind(abstract)
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
        }
        yield Bait(facts, secret, process, visits)


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
