"""A pytest plugin that reports what was collected and how each node ended, and the run itself."""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from .canaries import Canaries
from .handles import Handle
from .peer import TESTS

Report = Callable[[str, object], None]
"""Told (kind, content)."""

TEST_FILE = f"{TESTS}.py"
_LONGEST_MESSAGE = 300
_LEFT_OUT = (
    *("cacheprovider", "doctest", "faulthandler", "junitxml", "pastebin"),
    *("setuponly", "setupplan", "stepwise", "terminal", "warnings"),
    *("unraisableexception", "threadexception", "legacypath"),
)
_ARGUMENTS = (
    *("--assert=plain", "--capture=no", "--import-mode=importlib", "--noconftest"),
    *("-c", "/dev/null", "-p", "no:python_path"),
    *(word for name in _LEFT_OUT for word in ("-p", f"no:{name}")),
)


@dataclass(frozen=True)
class Run:
    """What a fork is to do with the test file in its folder."""

    nodes: Sequence[str] | None
    canaries: Canaries | None
    only_collect: bool
    report: Report


class _Silent:
    """No tracebacks, which the plugin left out would have an option for."""

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        """Tracebacks are shown to nobody."""
        parser.addoption("--tb", dest="tbstyle", default="no")


class Reporter(_Silent):
    """Reports through the guard; holds nothing that a program could use.

    Args:
        serve: Called once pytest is ready to collect. Returns in a fork that holds a program,
            with what is to be run there; never returns in the server.
    """

    def __init__(self, serve: Callable[[], Run]) -> None:
        self._serve = serve
        self._run: Run
        self._outcome = "passed"
        self._message = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """All that every program needs is done by now, once for all of them."""
        self._run = self._serve()
        self._watch(session)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, obj: object) -> list[pytest.Item] | None:
        """A function of the program is no test, whatever its name."""
        return [] if isinstance(obj, Handle) else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was asked for; one canary goes first, the other last."""
        places = {} if self._run.canaries is None else self._run.canaries.places
        if self._run.nodes is not None:
            wanted = {*self._run.nodes, *places}
            items[:] = [item for item in items if _name(item.nodeid) in wanted]
        items.sort(key=lambda item: places.get(_name(item.nodeid), 1))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Say why a test file could not be collected."""
        if not report.passed:
            self._run.report("uncollected", _shorten(str(report.longrepr)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Say which nodes there are."""
        self._watch(session)
        self._run.report("collected", [_name(item.nodeid) for item in session.items])

    def _watch(self, session: pytest.Session) -> None:
        """Have the guard keep an eye on plugins and tests, where a program could change them."""
        if self._run.canaries is not None:
            self._run.report("watch", [session.config.pluginmanager, getattr(session, "items", ())])

    def pytest_runtestloop(self) -> bool | None:
        """Run nothing if only the nodes were asked for."""
        return True if self._run.only_collect else None

    def pytest_runtest_logstart(self) -> None:
        """A new node begins."""
        self._outcome, self._message = "passed", ""

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Note the first thing that went wrong in setup, call or teardown."""
        if call.excinfo is None or self._outcome != "passed":
            return
        self._outcome = "failed" if call.when == "call" else "error"
        with contextlib.suppress(Exception):  # the exception's own __str__ may raise
            self._message = _shorten(call.excinfo.exconly(tryshort=True))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After the teardown, report the node."""
        if report.skipped:
            self._outcome = "skipped"
        elif report.failed and self._outcome == "passed":
            self._outcome = "failed"  # such as a strict xfail that passed
        if report.when == "teardown":
            node = _name(report.nodeid)
            self._run.report("node", [node, self._outcome, self._message])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Everything is reported: no clean-up that the program could have a hand in."""
        os._exit(0)


def serve(loop: Callable[[], Run], folder: str) -> None:
    """Start pytest on the test file that will be in a folder, up to where programs differ."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    pytest.main([*_arguments(folder), f"{folder}/{TEST_FILE}"], plugins=[Reporter(loop)])


def warm_up() -> None:
    """Run trusted tests in this process, and forget that they ran."""
    # Not a package: pytest would import those around it, and with them the whole library.
    folder = os.path.join(os.path.dirname(__file__), "warm")
    modules, environment, paths = set(sys.modules), dict(os.environ), list(sys.path)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with contextlib.redirect_stdout(None):
        pytest.main([*_arguments(folder), folder], plugins=[_Silent()])
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if name.endswith("test_warm"):
            del sys.modules[name]


def _arguments(folder: str) -> list[str]:
    return [*_ARGUMENTS, f"--rootdir={folder}", f"--confcutdir={folder}"]


def _name(node: str) -> str:
    return node.partition("::")[2]


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 3] + "..."
