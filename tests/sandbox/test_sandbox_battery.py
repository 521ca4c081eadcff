"""Every hostile program is contained under every isolation, and would be noticed if it were not."""

from collections.abc import Iterator

import pytest

from sphere_replay.sandbox.battery import Bait, Finding, bait_laid, prove, try_out
from sphere_replay.sandbox.hostile import Hostile, battery
from sphere_replay.sandbox.sandbox import tried
from sphere_replay.sandbox.worker import Worker

FACTS: dict[str, object] = dict.fromkeys(("secret", "folder", "socket", "abstract"), "/nowhere")
NAMES = [case.name for case in battery({**FACTS, "pid": 1, "port": 1})]


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


@pytest.mark.parametrize("name", NAMES)
def test_it_is_contained(name: str, worker: Worker, bait: Bait) -> None:
    finding = try_out(worker, case_of(name, bait), bait)
    assert finding.contained, finding.why


def test_the_battery_has_every_threat_once() -> None:
    assert len(set(NAMES)) == len(NAMES)
    asked_for = (
        *("endless loop", "sleep", "memory balloon", "fork tree", "thousands of threads"),
        *("disk fill", "endless output", "reads files of the host", "writes outside its folder"),
        *("network and local sockets", "kills or traces others", "environment and descriptors"),
        *("exit code 0 in a test", "ignores SIGTERM", "daemon", "symbolic links and paths"),
        *("binary garbage", "10 MB of source"),
    )
    assert set(asked_for) <= set(NAMES)
    assert {name.partition(":")[0] for name in NAMES} >= {"patched", "modules", "forged"}


# Without isolation these do no harm beyond the bait.
@pytest.mark.parametrize("name", ["reads files of the host", "network and local sockets"])
def test_probes_reach_things_where_nothing_stops_them(name: str, open_worker: Worker) -> None:
    with bait_laid() as bait:
        finding = try_out(open_worker, case_of(name, bait), bait)
    assert not finding.contained


def test_damage_to_the_bait_is_seen(open_worker: Worker) -> None:
    with bait_laid() as bait:
        kill = f"import os\nos.kill({bait.process.pid}, 9)\ndef probe():\n    return []\n"
        assert bait.damage() == ""
        assert try_out(open_worker, Hostile("kill", kill), bait).contained is False
    with bait_laid() as bait:
        bait.secret.write_text("changed")
        assert bait.damage() == "a file of the host was changed"
        bait.secret.with_name("written").touch()
        assert "a folder of the host was changed" in bait.damage()


def test_a_program_that_passes_is_not_contained(worker: Worker, bait: Bait) -> None:
    good = "def square(x):\n    return x ** 2\n"
    finding = try_out(worker, Hostile("good", good, ("finished",)), bait)
    assert (finding.contained, finding.why) == (False, "it passed")


def test_prove_runs_all_and_tells_how_far_it_is(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [Hostile("exit", "import os\nos._exit(0)\n", ("uncollected",))] * 2
    monkeypatch.setattr("sphere_replay.sandbox.battery.battery", lambda facts: few)
    steps: list[tuple[int, int, str]] = []
    findings = prove(worker, lambda *step: steps.append(step))
    assert [finding.contained for finding in findings] == [True, True]
    assert isinstance(findings[0], Finding)
    assert steps == [(0, 2, "exit"), (1, 2, "exit")]
