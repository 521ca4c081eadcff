"""`sphere sandbox` as a stranger meets it."""

import json
from pathlib import Path

import pytest

from sphere_replay.cli import main
from sphere_replay.sandbox import battery, hostile
from sphere_replay.sandbox.isolation import ISOLATIONS, missing

pytestmark = pytest.mark.skipif(
    all(missing(name) for name in ISOLATIONS), reason="this machine offers no isolation"
)

TESTS = "from solution import f\n\ndef test_one():\n    assert f(1) == 2\n\n"
TESTS += "def test_two():\n    assert f(2) == 4\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    program, tests = tmp_path / "program.py", tmp_path / "test_program.py"
    program.write_text("def f(x):\n    return 2 * x\n")
    tests.write_text(TESTS)
    return program, tests


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["sandbox", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_good_program(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "run", *files, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["nodes"] == {"test_one": "passed", "test_two": "passed"}
    assert result["seconds"] > 0
    assert result["isolation"] in ISOLATIONS


def test_a_wrong_program(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files[0].write_text("def f(x):\n    return 2\n")
    code, out, _ = run(capsys, "run", *files)
    assert code == 1
    assert "passed   test_one" in out
    assert "failed   test_two   AssertionError" in out
    assert "1 of 2 passed" in out
    assert run(capsys, "run", *files, "--node", "test_one", "--json")[0] == 0


def test_what_programs_say_cannot_reach_the_terminal(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_text("def f(x):\n    raise ValueError('\\x1b[2Kpassed\\x07\\u202e')\n")
    for judge in ("strict", "shared"):
        _, out, _ = run(capsys, "run", *files, "--judge", judge)
        assert r"ValueError: \x1b[2Kpassed\x07\u202e" in out
        assert "\x1b" not in out


def test_limits_are_options(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files[0].write_text("import time\n\ndef f(x):\n    time.sleep(60 * (x - 1))\n    return 2\n")
    words = ("--wall", "1", "--memory", "128", "--file-size", "512K", "--processes", "8")
    code, out, _ = run(capsys, "run", *files, "--json", *words)
    assert code == 1
    assert json.loads(out)["nodes"] == {"test_one": "passed", "test_two": "timeout"}


def test_bad_programs_and_files_without_tests_are_verdicts(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_bytes(b"\xff\xfe\x00")
    code, out, _ = run(capsys, "run", *files, "--json")
    assert code == 1
    assert json.loads(out)["nodes"] == {"test_one": "error", "test_two": "error"}
    files[1].write_text("")
    code, out, _ = run(capsys, "run", *files)
    assert code == 1
    assert "empty: the test file has no node that pytest can collect" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--wall", "soon"), "--wall takes SECONDS, got 'soon'"),
        (("--memory", "1"), "give at least 16777216"),
        (("--memory", "268435456"), "plain numbers are MiB"),
        (("--isolation", "bubble"), "unknown isolation"),
        (("--isolation", "none"), "unsafe=True"),
    ],
)
def test_mistakes_get_one_line(
    words: tuple[str, ...],
    message: str,
    files: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "run", *files, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_files_that_cannot_be_read(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "run", tmp_path / "none.py", files[1])
    assert (code, "none.py is not a file" in err) == (2, True)
    files[1].write_bytes(b"\xff")
    code, _, err = run(capsys, "run", *files)
    assert (code, "is not a UTF-8 text" in err) == (2, True)


def test_check_proves_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = hostile.Hostile("exit", "processes", b"import os\nos._exit(0)\n", TESTS)
    monkeypatch.setattr(battery, "battery", lambda facts: [fine])
    code, out, _ = run(capsys, "check", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["uses"] in ISOLATIONS
    assert [entry["name"] for entry in result["isolations"]] == list(ISOLATIONS)
    working = [entry for entry in result["isolations"] if entry["works"]]
    assert all(entry["findings"][0]["contained"] for entry in working)

    loose = hostile.Hostile("good", "tests", b"def f(x):\n    return 2 * x\n", TESTS)
    monkeypatch.setattr(battery, "battery", lambda facts: [fine, loose])
    code, out, _ = run(capsys, "check", "--isolation", result["uses"])
    assert code == 1
    assert "processes, strict  1 of 1 contained" in out
    assert "tests, shared      0 of 1 contained" in out
    assert "contains 1 of 3 hostile programs" in out
    assert "good (strict): it passed" in out
    assert "memory is limited by" in out
    code, out, _ = run(capsys, "check", "--isolation", result["uses"], "--all", "--class", "tests")
    assert "good, strict  NOT CONTAINED finished" in out


def test_check_without_any_isolation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sphere_replay.sandbox.isolation.missing", lambda name: f"no {name} here")
    code, out, _ = run(capsys, "check")
    assert code == 1
    assert "bubblewrap  no bubblewrap here" in out
    assert "unless you pass --unsafe" in out
    code, _, err = run(capsys, "check", "--isolation", "docker")
    assert (code, "unknown isolation 'docker'" in err) == (2, True)
