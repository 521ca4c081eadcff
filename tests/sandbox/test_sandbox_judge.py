"""Reports count only in the right words, with the nonce, in turn, and with failing canaries."""

import json

import pytest

from sphere_replay.sandbox.inside.canaries import Canaries
from sphere_replay.sandbox.inside.judge import Judge
from sphere_replay.sandbox.limits import verdict_from

CANARIES = Canaries("first", "last")
NONCE = "abc"


def judged(*reports: tuple[str, object], complete: bool = True, raw: bytes = b"") -> Judge:
    judge = Judge(CANARIES)
    lines = [NONCE, *(f"{NONCE} {json.dumps(report)}" for report in reports)]
    data = "".join(f"{line}\n" for line in lines).encode() + raw
    judge.feed(data[:7])  # in pieces, as pipes deliver
    judge.feed(data[7:])
    judge.close(complete=complete)
    return judge


def node(name: str, outcome: str = "passed") -> tuple[str, object]:
    return ("node", [name, outcome, ""])


COLLECTED = ("collected", ["first", "test_a", "last"])
HONEST = (COLLECTED, node("first", "failed"), node("test_a"), node("last", "failed"))


def test_honest_reports_count() -> None:
    judge = judged(*HONEST)
    assert judge.fraud is None
    assert (judge.collected, judge.outcomes) == (["test_a"], {"test_a": "passed"})


@pytest.mark.parametrize(
    ("reports", "fraud"),
    [
        ((COLLECTED, node("first"), node("test_a"), node("last")), "must fail passed"),
        ((COLLECTED, node("first", "failed"), node("test_a")), "was not reported"),
        ((COLLECTED, node("test_a")), "before its turn"),
        ((("collected", ["test_a"]), node("test_a")), "canaries were not collected"),
        ((node("test_a"),), "out of turn"),
        ((*HONEST, node("test_a")), "out of turn"),
        ((COLLECTED, node("test_b")), "out of turn"),
        ((COLLECTED, COLLECTED), "out of turn"),
        ((COLLECTED, node("first", "fine")), "an outcome 'fine'"),
        ((COLLECTED, ("node", ["first"])), "cannot be read"),
        ((("tampered", "pytest was exchanged"),), "pytest was exchanged"),
        ((("praise", ""),), "kind 'praise'"),
    ],
)
def test_frauds_are_named(reports: tuple[tuple[str, object], ...], fraud: str) -> None:
    assert fraud in str(judged(*reports).fraud)


@pytest.mark.parametrize(
    ("raw", "fraud"),
    [
        (b"xyz [1]\n", "without the nonce"),
        (b"abc not json\n", "cannot be read"),
        (b"\xff\xfe\n", "without the nonce"),
        (b"abc [", "half a report"),
    ],
)
def test_bytes_from_elsewhere_are_frauds(raw: bytes, fraud: str) -> None:
    assert fraud in str(judged(*HONEST, raw=raw).fraud)


def test_a_run_that_was_cut_off_keeps_what_it_reported() -> None:
    judge = judged(COLLECTED, node("first", "failed"), node("test_a"), complete=False)
    assert judge.fraud is None
    assert judge.outcomes["test_a"] == "passed"


def test_what_could_not_be_collected_is_no_fraud() -> None:
    judge = judged(("uncollected", "SyntaxError"), ("collected", []))
    assert (judge.fraud, judge.uncollected) == (None, "SyntaxError")


def test_nothing_reported_is_no_pass() -> None:
    judge = Judge(CANARIES)
    judge.close(complete=True)
    assert judge.outcomes == {}
    answer: dict[str, object] = {
        "refused": None,
        "fraud": None,
        "uncollected": None,
        "ending": "finished",
        "collected": None,
        "outcomes": {},
        "messages": {},
        "output": "",
        "seconds": 0.1,
    }
    verdict = verdict_from(answer, ["test_a"])
    assert verdict.nodes == {"test_a": "error"}
    assert verdict.ending == "uncollected"
    assert not verdict.passed


def test_canaries_look_like_the_tests_around_them() -> None:
    tests = "def test_add_1():\n    assert add(1, 2) == 3\n"
    canaries = Canaries.among(tests)
    added = canaries.added_to(tests)
    for name in (canaries.first, canaries.last):
        assert name.startswith("test_add_")
        assert f"def {name}():\n    assert " in added
    assert canaries.first != canaries.last
    names: dict[str, object] = {}
    exec(added, names)
    for name in (canaries.first, canaries.last):
        with pytest.raises(AssertionError):
            names[name]()  # type: ignore[operator]  # a test
