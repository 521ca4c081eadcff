"""Runs programs against tests: a pool of warm workers, the best isolation there is, a cache."""

import platform
import queue
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from .cache import VerdictCache, content_key
from .isolation import ISOLATIONS, missing
from .limits import JUDGES, Limits, Verdict, verdict_from
from .names import STAND_IN, only_nodes, visible_tests
from .worker import Worker, WorkerError


class SandboxError(RuntimeError):
    """No isolation works here, or the one that was asked for does not."""


@dataclass(frozen=True)
class Trial:
    """A program, the test file it has to pass, and which nodes of it (None: all)."""

    program: str | bytes
    tests: str
    nodes: Sequence[str] | None = None
    judge: str = "strict"
    """One of `JUDGES`."""


class Sandbox:
    """Runs untrusted programs; a context manager that owns its worker processes.

    Args:
        isolation: `auto` (the best that works), `bubblewrap`, `landlock`, or `none`, which is
            refused unless `unsafe` is given.
        limits: What each program may use.
        workers: Programs that run side by side.
        cache: A folder for verdicts; None: every program is run.
        unsafe: Run programs without isolation where none works (with `auto`), or as asked for.
    """

    def __init__(
        self,
        isolation: str = "auto",
        limits: Limits | None = None,
        workers: int = 1,
        cache: Path | str | None = None,
        unsafe: bool = False,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers = {workers}: at least one has to do the work")
        self.limits = limits if limits is not None else Limits()
        self._cache = None if cache is None else VerdictCache(Path(cache))
        self.isolation, first = _start(isolation, unsafe)
        self._setting = f"{self.isolation} python {platform.python_version()} pytest {first.pytest}"
        self._workers = workers
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(workers - 1):
            self._idle.put(None)  # started when first needed
        self._idle.put(first)
        self._closed = False

    def run(
        self,
        program: str | bytes,
        tests: str,
        nodes: Sequence[str] | None = None,
        judge: str = "strict",
    ) -> Verdict:
        """Run a program, imported as `solution`, against the nodes of a test file.

        Args:
            program: Its source.
            tests: A pytest file.
            nodes: Those that are run; None: all.
            judge: `strict`, the tests in a process that the program cannot reach, or `shared`,
                both in one interpreter.
        """
        if judge not in JUDGES:
            raise ValueError(f"unknown judge {judge!r}; known: {', '.join(JUDGES)}")
        source = _source(program)
        known = list(nodes) if nodes is not None else visible_tests(tests)
        if len(source) > self.limits.file_size:
            why = f"the program has {len(source)} bytes, file_size allows {self.limits.file_size}"
            return Verdict(dict.fromkeys(known, "error"), "too large", why)
        if self._cache is None:
            return self._run(source, tests, nodes, known, judge)
        key = content_key(source, tests, nodes, self.limits, f"{self._setting} {judge}")
        verdict = self._cache.get(key)
        if verdict is None:
            verdict = self._run(source, tests, nodes, known, judge)
            self._cache.put(key, verdict)
        return verdict

    def run_many(self, trials: Iterable[Trial]) -> list[Verdict]:
        """Run programs on all workers; verdicts come in the order of the trials."""
        with ThreadPoolExecutor(self._workers) as threads:
            return list(
                threads.map(lambda it: self.run(it.program, it.tests, it.nodes, it.judge), trials)
            )

    def nodes_of(self, tests: str, program: str | bytes = STAND_IN) -> list[str]:
        """The nodes of a test file in pytest's order; [] if there are none, or it cannot be loaded.

        Args:
            tests: The test file.
            program: What it imports as `solution`; by default a stand-in that has every name.
        """
        answer = self._ask(_source(program), tests, None, "shared", only_collect=True)
        if answer["refused"] is not None:
            raise SandboxError(f"the tests were not collected: {answer['refused']}")
        whole = answer["uncollected"] is None and answer["fraud"] is None
        return list(answer["collected"] or []) if whole else []

    def close(self) -> None:
        """End all workers."""
        if self._closed:
            return
        self._closed = True
        for _ in range(self._workers):
            worker = self._idle.get()
            if worker is not None:
                worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(
        self,
        source: bytes,
        tests: str,
        nodes: Sequence[str] | None,
        known: list[str],
        judge: str,
    ) -> Verdict:
        if judge == "shared" and nodes is not None:
            tests = only_nodes(tests, nodes)  # the program could read the others
        try:
            answer = self._ask(source, tests, nodes, judge)
        except WorkerError as error:
            return Verdict(dict.fromkeys(known, "error"), "broken", str(error))
        verdict = verdict_from(answer, known)
        if nodes is None:
            return verdict
        # In the order that was asked for; nodes that the file does not have are errors.
        return replace(verdict, nodes={node: verdict.nodes.get(node, "error") for node in nodes})

    def _ask(
        self,
        source: bytes,
        tests: str,
        nodes: Sequence[str] | None,
        judge: str,
        *,
        only_collect: bool = False,
    ) -> dict[str, Any]:
        if self._closed:
            raise ValueError("this sandbox is closed: make a new one")
        worker = self._idle.get()
        try:
            if worker is None:
                worker = Worker(self.isolation)
            return worker.ask(source, tests, nodes, self.limits, judge, only_collect=only_collect)
        except BaseException:  # whatever it is, this worker's pipes cannot be relied on any more
            if worker is not None:
                worker.close()
            worker = None
            raise
        finally:
            self._idle.put(worker)


def _source(program: str | bytes) -> bytes:
    return program.encode("utf-8", "surrogatepass") if isinstance(program, str) else program


def _start(isolation: str, unsafe: bool) -> tuple[str, Worker]:
    """The isolation that is used, and a first worker that has proved to work under it."""
    choices = ("auto", *ISOLATIONS, "none")
    if isolation not in choices:
        raise ValueError(f"unknown isolation {isolation!r}; known: {', '.join(choices)}")
    if isolation == "none":
        if not unsafe:
            raise SandboxError(
                "without isolation programs can do whatever you can: say unsafe=True"
            )
        return "none", Worker("none")
    reasons = []
    for name in ISOLATIONS if isolation == "auto" else (isolation,):
        reason = missing(name)
        if reason is None:
            try:
                return name, tried(name)
            except WorkerError as error:
                reason = str(error)
        reasons.append(f"{name}: {reason}")
    if unsafe and isolation == "auto":
        return "none", Worker("none")
    raise SandboxError(
        f"programs are not run here, since nothing would confine them ({'; '.join(reasons)}); "
        "install bubblewrap, or accept the danger with unsafe=True (--unsafe)"
    )


def tried(name: str) -> Worker:
    """A worker that has run a harmless program; WorkerError where it could not."""
    worker = Worker(name)
    try:
        tests = "import solution\n\ndef test_nothing():\n    pass\n"
        answer = worker.ask(b"", tests, None, Limits(wall=30.0))
        if answer["outcomes"] != {"test_nothing": "passed"}:
            said = answer["refused"] or answer["fraud"] or answer["uncollected"] or answer["ending"]
            raise WorkerError(str(said).strip().splitlines()[-1])
    except WorkerError:
        worker.close()
        raise
    return worker
