"""What a sandbox says about programs that are good, bad, slow, broken or not there at all."""

import os
import time
from pathlib import Path

import pytest

from sphere_replay.sandbox import Limits, Sandbox, SandboxError, Trial
from sphere_replay.sandbox import sandbox as module
from sphere_replay.sandbox.names import only_nodes, visible_tests

GOOD = "def double(x):\n    return 2 * x\n"
TESTS = """
import unittest
import pytest
from solution import double

@pytest.fixture
def three():
    return 3

def test_fixture(three):
    assert double(three) == 6

@pytest.mark.parametrize("x", [1, 2])
def test_parameters(x):
    assert double(x) == 2

class TestPlain:
    def test_raises(self):
        with pytest.raises(TypeError):
            double(None)

class Unit(unittest.TestCase):
    def test_unit(self):
        self.assertEqual(double(4), 8)
"""


def test_every_kind_of_test_gets_its_outcome(sandbox: Sandbox) -> None:
    verdict = sandbox.run(GOOD, TESTS)
    assert verdict.nodes == {
        "test_fixture": "passed",
        "test_parameters[1]": "passed",
        "test_parameters[2]": "failed",
        "TestPlain::test_raises": "passed",
        "Unit::test_unit": "passed",
    }
    assert (verdict.ending, verdict.passed, verdict.cached) == ("finished", False, False)
    assert "AssertionError" in verdict.messages["test_parameters[2]"]
    assert 0 < verdict.seconds < 20


def test_outcomes_other_than_passed_are_no_pass(sandbox: Sandbox) -> None:
    tests = """
import pytest

def test_skipped():
    pytest.skip("no")

@pytest.mark.xfail
def test_expected():
    assert False

@pytest.mark.xfail(strict=True)
def test_strict():
    pass

@pytest.fixture
def broken():
    raise ValueError("setup")

def test_setup(broken):
    pass

@pytest.fixture
def late():
    yield
    raise ValueError("teardown")

def test_teardown(late):
    pass
"""
    verdict = sandbox.run("", tests)
    assert list(verdict.nodes.values()) == ["skipped", "skipped", "failed", "error", "error"]
    assert verdict.messages["test_setup"] == "ValueError: setup"


def test_chosen_nodes_are_run_alone_and_in_the_order_asked_for(sandbox: Sandbox) -> None:
    wanted = ["Unit::test_unit", "test_parameters[1]"]
    verdict = sandbox.run(GOOD, TESTS, wanted)
    assert list(verdict.nodes.items()) == [(name, "passed") for name in wanted]
    assert verdict.passed
    unknown = sandbox.run(GOOD, TESTS, ["test_fixture", "test_none"])
    assert unknown.nodes == {"test_fixture": "passed", "test_none": "error"}


@pytest.mark.parametrize(
    "program",
    ["def double(x:\n", "raise ValueError('no')\n", "", b"\xff\xfe\x00", "x = '\ud800'\n"],
    ids=["syntax", "raises", "empty", "binary", "surrogate"],
)
def test_programs_that_cannot_be_imported_fail_every_visible_test(
    sandbox: Sandbox, program: str | bytes
) -> None:
    verdict = sandbox.run(program, TESTS)
    assert verdict.nodes == dict.fromkeys(visible_tests(TESTS), "error")
    assert verdict.ending == "uncollected"
    assert verdict.why


@pytest.mark.parametrize(
    ("tests", "ending"),
    [
        ("", "empty"),
        ("def helper():\n    pass\n", "empty"),
        ("def test_(:\n", "uncollected"),
        ("import pytest\npytest.skip('x', allow_module_level=True)\n", "uncollected"),
    ],
    ids=["empty", "no test", "syntax", "skips itself"],
)
def test_files_without_nodes_pass_nothing(sandbox: Sandbox, tests: str, ending: str) -> None:
    verdict = sandbox.run(GOOD, tests)
    assert (verdict.nodes, verdict.ending, verdict.passed) == ({}, ending, False)
    assert sandbox.nodes_of(tests) == []


def test_what_passed_before_the_time_was_up_has_passed(isolation: str) -> None:
    tests = "from solution import f\ndef test_a():\n    f(0)\ndef test_b():\n    f(60)\n"
    with Sandbox(isolation, Limits(wall=1.0)) as sandbox:
        start = time.monotonic()
        verdict = sandbox.run("import time\nf = time.sleep\n", tests + "def test_c():\n    f(0)\n")
        assert time.monotonic() - start < 8
    assert verdict.nodes == {"test_a": "passed", "test_b": "timeout", "test_c": "timeout"}
    assert verdict.ending == "timeout"


def test_the_last_output_is_kept_and_nothing_leaks_between_programs(sandbox: Sandbox) -> None:
    leave = "import os, sys, builtins\nopen('left', 'w').close()\nos.environ['LEFT'] = '1'\n"
    leave += "sys.left = builtins.left = 1\nprint('x' * 5000 + 'the end')\n"
    tests = "import solution\ndef test_a():\n    pass\n"
    verdict = sandbox.run(leave, tests)
    assert verdict.passed
    assert verdict.output.endswith("the end\n")
    assert len(verdict.output) <= 2000
    look = "import os, sys, builtins\n"
    look += "assert os.listdir() == ['solution.py']\n"
    look += "assert 'LEFT' not in os.environ and not hasattr(sys, 'left')\n"
    look += "assert not hasattr(builtins, 'left')\n"
    assert sandbox.run(look, tests).passed


def test_programs_may_use_what_programs_use(sandbox: Sandbox) -> None:
    program = """
import asyncio, collections, concurrent.futures, dataclasses, subprocess, sys, tempfile, threading

Point = collections.namedtuple("Point", "x y", defaults=[0])

async def later():
    await asyncio.sleep(0)
    return 1

def work():
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        total = sum(pool.map(abs, [-1, -2]))
    return [asyncio.run(later()), total, Point(1).y]
"""
    tests = """
from solution import work

def test_work(monkeypatch, capsys, tmp_path, caplog):
    (tmp_path / "x").write_text("x")
    monkeypatch.setattr("builtins.input", lambda: "3")
    print(input())
    assert capsys.readouterr().out == "3\\n"
    assert work() == [1, 3, 0]
"""
    verdict = sandbox.run(program, tests)
    assert verdict.passed, verdict


def test_collecting(sandbox: Sandbox) -> None:
    assert sandbox.nodes_of(TESTS) == list(sandbox.run(GOOD, TESTS).nodes)
    unordered = "def test_b():\n    pass\n\ndef test_a():\n    pass\n"
    assert sandbox.nodes_of(unordered) == ["test_b", "test_a"]
    derived = "import pytest\nfrom solution import N\n"
    derived += "@pytest.mark.parametrize('i', range(N))\ndef test_i(i):\n    pass\n"
    assert sandbox.nodes_of(derived, "N = 2\n") == ["test_i[0]", "test_i[1]"]


def test_many_programs_keep_their_order() -> None:
    trials = [
        Trial(f"VALUE = {n}\n", f"import solution\ndef test_{n}():\n    pass\n") for n in range(6)
    ]
    with Sandbox(workers=2) as sandbox:
        verdicts = sandbox.run_many(trials)
    assert [list(verdict.nodes) for verdict in verdicts] == [[f"test_{n}"] for n in range(6)]
    assert all(verdict.passed for verdict in verdicts)
    with pytest.raises(ValueError, match="closed"):
        sandbox.run(GOOD, TESTS)


def test_a_worker_that_dies_is_replaced(isolation: str) -> None:
    with Sandbox(isolation) as sandbox:
        worker = sandbox._idle.get()
        assert worker is not None
        worker.kill()
        sandbox._idle.put(worker)
        folder = worker._folder
        verdict = sandbox.run(GOOD, TESTS)
        assert folder is None or not Path(folder).exists()
        assert (verdict.ending, set(verdict.nodes.values())) == ("broken", {"error"})
        assert sandbox.run(GOOD, "from solution import double\ndef test_a():\n    pass\n").passed


def test_too_large_programs_are_not_even_sent(sandbox: Sandbox) -> None:
    verdict = sandbox.run(b"#" * (sandbox.limits.file_size + 1), TESTS)
    assert (verdict.ending, verdict.seconds) == ("too large", 0.0)
    assert set(verdict.nodes.values()) == {"error"}


def test_nothing_runs_without_isolation_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxError, match="unsafe=True"):
        Sandbox("none")
    monkeypatch.setattr(module, "missing", lambda name: "not here")
    with pytest.raises(SandboxError, match="bubblewrap: not here; landlock: not here"):
        Sandbox()
    with pytest.raises(SandboxError, match="bubblewrap: not here"):
        Sandbox("bubblewrap", unsafe=True)
    with Sandbox(unsafe=True) as sandbox:
        assert sandbox.isolation == "none"
        assert sandbox.run(GOOD, "from solution import double\ndef test_a():\n    pass\n").passed


def test_an_isolation_that_fails_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    false = tmp_path / "bwrap"
    false.write_text("#!/bin/sh\necho no namespaces here >&2\nexit 1\n")
    false.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(SandboxError, match="no namespaces here"):
        Sandbox("bubblewrap")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"isolation": "bubblewarp"}, "unknown isolation"), ({"workers": 0}, "workers = 0")],
)
def test_bad_settings(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sandbox(**arguments)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"wall": 0}, "wall = 0 is no limit"),
        ({"wall": float("inf")}, "no limit"),
        ({"memory": 1000}, "give at least 16777216"),
        ({"processes": 1.5}, "takes a whole number"),
        ({"files": "many"}, "takes a number"),
    ],
)
def test_bad_limits(limits: dict[str, float], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Limits(**limits)  # type: ignore[arg-type]  # wrong on purpose


def test_names_that_the_source_shows() -> None:
    assert visible_tests(TESTS) == [
        *("test_fixture", "test_parameters", "TestPlain::test_raises", "Unit::test_unit"),
    ]
    assert visible_tests("def test_a(:") == []
    assert visible_tests("\0") == []


def test_other_tests_are_not_handed_over() -> None:
    short = only_nodes(TESTS, ["TestPlain::test_raises", "test_parameters[1]"])
    assert visible_tests(short) == ["test_parameters", "TestPlain::test_raises"]
    assert "def three" in short  # a fixture is no test
    used = "def test_a():\n    pass\n\ndef test_b():\n    test_a()\n"
    assert only_nodes(used, ["test_b"]) == used
    assert only_nodes("def test_(:", ["test_b"]) == "def test_(:"
