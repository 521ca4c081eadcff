"""Every hostile program is contained under every isolation, and would be noticed if it were not."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sphere_replay
from sphere_replay.sandbox.battery import Bait, Finding, bait_laid, prove, try_out
from sphere_replay.sandbox.hostile import CHEATS, CLASSES, Hostile, battery
from sphere_replay.sandbox.sandbox import tried
from sphere_replay.sandbox.worker import Worker

FACTS: dict[str, object] = dict.fromkeys(("secret", "folder", "socket", "abstract"), "/nowhere")
CASES = battery({**FACTS, "pid": 1, "port": 1, "shm": 1})


@pytest.fixture(scope="module")
def bait() -> Iterator[Bait]:
    with bait_laid() as laid:
        yield laid


@pytest.fixture(scope="module")
def worker(isolation: str) -> Iterator[Worker]:
    started = tried(isolation)
    yield started
    started.close()


@pytest.fixture(scope="module")
def open_worker() -> Iterator[Worker]:
    started = Worker("none")
    yield started
    started.close()


def case_of(name: str, bait: Bait) -> Hostile:
    return next(case for case in battery(bait.facts) if case.name == name)


def loose(worker: Worker, bait: Bait, kind: str, judge: str) -> list[str]:
    cases = [case for case in battery(bait.facts) if case.kind == kind]
    if judge == "shared":
        cases = [case for case in cases if not case.strict_only]
    findings = [try_out(worker, case, bait, judge) for case in cases]
    return [f"{finding.name}: {finding.why}" for finding in findings if not finding.contained]


@pytest.mark.parametrize("kind", CLASSES)
def test_all_of_a_class_are_contained(kind: str, worker: Worker, bait: Bait) -> None:
    assert loose(worker, bait, kind, "strict") == []


@pytest.mark.parametrize("kind", CHEATS)
def test_the_shared_judge_withstands_those_it_can(kind: str, worker: Worker, bait: Bait) -> None:
    assert loose(worker, bait, kind, "shared") == []


def test_the_battery_has_every_threat_once() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 100
    assert {case.kind for case in CASES} == set(CLASSES)
    asked_for = (
        *("endless loop", "sleep", "memory balloon", "fork tree", "thousands of threads"),
        *("disk fill", "endless output", "reads files of the host", "writes outside its folder"),
        *("TCP", "kills others", "environment", "ignores SIGTERM", "daemon", "binary garbage"),
        *("patched: how JSON is spelled", "patched: the code that spells JSON"),
        *("the nonce from the frame of the hook", "a key that is equal to others"),
        *("the reporter, called from a bare thread", "a plugin at run time"),
        *("a plugin injected into the module that imports", "later tests that run nothing"),
        *("the class of the test module", "the built-ins of the test module"),
        *("names of the tests replaced on import", "code of the tests replaced"),
        *("tests removed before they are collected", "patched: math.isclose"),
        *("patched: the tolerance of approx", "a false pytest in the frame of the tests"),
        *("reads the test file", "shared memory of System V by its id"),
        *("extended attributes", "watches files of the host", "abstract names"),
        *("reopens its own descriptors", "shared memory that is let go of and kept"),
        *("buffers of sockets", "escapes for the terminal"),
    )
    assert set(asked_for) <= set(names)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_plain_user_is_as_safe() -> None:
    words = ["-m", "sphere_replay", "sandbox", "check", "--json", "--isolation", "landlock"]
    for kind in ("files", "kernel", "network"):
        words += ["--class", kind]
    folders = [Path(sphere_replay.__file__).parents[1], Path(pytest.__file__).parents[1]]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "HOME": "/nonexistent"}
    # Our own Python may live in a folder that only root may enter.
    system = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/bin")
    for python in filter(None, (os.path.realpath(sys.executable), system)):
        with contextlib.suppress(PermissionError):
            ended = subprocess.run(
                [python, *words],
                capture_output=True,
                user=65534,
                group=65534,
                extra_groups=[],
                cwd="/",
                env=environment,
            )
            break
    else:
        pytest.skip("no Python here that everybody may start")
    if not ended.stdout:
        pytest.skip(f"the package is not for everybody here: {ended.stderr.decode()[-200:]}")
    (result,) = json.loads(ended.stdout)["isolations"]
    if not result["works"]:
        pytest.skip(result["why"])
    assert [finding for finding in result["findings"] if not finding["contained"]] == []
    assert len(result["findings"]) > 30


# Without isolation these do no harm beyond the bait.
@pytest.mark.parametrize("name", ["reads files of the host", "TCP", "kills others"])
def test_probes_reach_things_where_nothing_stops_them(name: str, open_worker: Worker) -> None:
    with bait_laid() as bait:
        finding = try_out(open_worker, case_of(name, bait), bait)
    assert not finding.contained


def test_damage_to_the_bait_is_seen(open_worker: Worker) -> None:
    with bait_laid() as bait:
        kill = f"import os\nos.kill({bait.process.pid}, 9)\ndef probe():\n    return []\n"
        tests = "import solution\n\ndef test_probe():\n    assert solution.probe() == []\n"
        assert bait.damage() == ""
        case = Hostile("kill", "processes", kill.encode(), tests, probe=True)
        assert try_out(open_worker, case, bait).contained is False
    with bait_laid() as bait:
        bait.secret.write_text("changed")
        assert bait.damage() == "a file of the host was changed"
        bait.secret.with_name("written").touch()
        assert "a folder of the host was changed" in bait.damage()


def test_a_program_that_passes_is_not_contained(worker: Worker, bait: Bait) -> None:
    good = b"def square(x):\n    return x ** 2\n"
    finding = try_out(worker, Hostile("good", "tests", good, CASES[-1].tests), bait)
    assert (finding.contained, finding.why) == (False, "it passed")


def test_prove_runs_all_and_tells_how_far_it_is(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [case for case in CASES if case.name == "exit code 0 on import"] * 2
    monkeypatch.setattr("sphere_replay.sandbox.battery.battery", lambda facts: few)
    steps: list[tuple[int, int, str]] = []
    findings = prove(worker, lambda *step: steps.append(step))
    assert [finding.contained for finding in findings] == [True, True]
    assert isinstance(findings[0], Finding)
    assert steps == [(0, 2, few[0].name), (1, 2, few[0].name)]
