"""Preparation with real references in the real sandbox, from made-up and from published rows."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sphere_replay.cli import main
from sphere_replay.coding.grading import Grader
from sphere_replay.coding.problems import (
    Problem,
    Settings,
    load_candidates,
    micro_family,
    prepare,
    read_problems,
)
from sphere_replay.coding.problems.rows import kodcode_problem, leetcode_problem, mbpp_problem
from sphere_replay.errors import DataError
from sphere_replay.sandbox import Sandbox

GOOD = "def f(x):\n    return x\n"
TESTS = "from solution import f\n" + "".join(
    f"\ndef test_{i}():\n    assert f({i}) == {i}\n" for i in range(4)
)
# Differs between executions: two runs of one reference never see the same moment.
FLAKY = TESTS + (
    "\nimport pytest, time\n"
    "@pytest.mark.parametrize('moment', [time.time_ns()])\n"
    "def test_moment(moment):\n    assert f(moment)\n"
)


def problem(name: str, tests: str = TESTS, reference: str = GOOD, prompt: str = "") -> Problem:
    return Problem(name, "stage", prompt or f"{name} asks for something", reference, tests)


DERIVED = TESTS + (
    "\nimport solution\n\ndef test_derived():\n"
    "    class Own(solution.Base):\n        pass\n    assert Own().two() == 2\n"
)
BASE = GOOD + "class Base:\n    def two(self):\n        return 2\n"


def test_problems_that_need_one_interpreter_are_kept_only_if_asked_for(sandbox: Sandbox) -> None:
    candidates = [problem("strict"), problem("derived", DERIVED, BASE)]
    prepared = prepare(candidates, sandbox, Settings(similarity=None))
    (drop,) = prepared.dropped
    assert (drop.id, drop.reason) == ("derived", "needs one interpreter")
    assert "derive from a class of the program" in drop.detail
    prepared = prepare(candidates, sandbox, Settings(similarity=None, shared=True))
    judges = {kept.id: (kept.judge, bool(kept.why_shared)) for kept in prepared.problems}
    assert judges == {"strict": ("strict", False), "derived": ("shared", True)}
    derived = next(kept for kept in prepared.problems if kept.id == "derived")
    assert Grader(sandbox).solved([(derived, BASE), (derived, GOOD)]) == [True, False]


def test_every_step_says_what_it_dropped(sandbox: Sandbox) -> None:
    candidates = [
        problem("good"),
        problem("again", prompt="good asks for something"),
        problem("flaky", FLAKY),
        problem("numpy", reference="import numpy\n" + GOOD),
        problem("broken", reference="def f(:\n"),
        problem("wrong", reference="def f(x):\n    return 1\n"),
        problem("exit", reference="import os\ndef f(x):\n    os._exit(0)\n"),
        problem("few", TESTS.partition("\ndef test_3")[0]),
        problem("none", "from solution import f\n"),
        problem("import", "from solution import g\n" + TESTS),
        problem("good", prompt="another with the same id"),
    ]
    seen: list[tuple[int, int, str]] = []
    prepared = prepare(
        candidates,
        sandbox,
        Settings(similarity=None),
        report=lambda done, total, words: seen.append((done, total, words)),
    )
    reasons = {drop.id: drop.reason for drop in prepared.dropped}
    assert reasons.pop("good" if "good" in reasons else "again") in (
        "repeated id",
        "near duplicate",
    )
    reasons.pop("again", None)
    assert reasons == {
        "numpy": "not standard library",
        "broken": "not Python",
        "wrong": "reference fails",
        "exit": "reference fails",
        "few": "number of nodes",
        "none": "no collectible node",
        "import": "no collectible node",
    }
    flaky = next(kept for kept in prepared.problems if kept.id == "flaky")
    assert flaky.nodes == ("test_0", "test_1", "test_2", "test_3")
    assert prepared.unstable_nodes == 2  # one moment of either run
    assert seen[-1][:2] == (len(candidates), len(candidates))
    assert len(prepared.problems) + len(prepared.dropped) == len(candidates)


def test_a_stage_stops_at_enough(sandbox: Sandbox) -> None:
    candidates = micro_family()[:40]
    settings = Settings(similarity=None, enough=2, sizes={"train": 5, "evaluation": 4})
    prepared = prepare(candidates, sandbox, settings)
    assert Counter(drop.reason for drop in prepared.dropped) == {
        "not examined": 24,
        "not needed": 7,
    }
    assert Counter(kept.split for kept in prepared.problems) == {"train": 5, "evaluation": 4}


def test_a_cache_would_hide_the_second_run(tmp_path: Path, sandbox: Sandbox) -> None:
    with (
        Sandbox(sandbox.isolation, cache=tmp_path) as cached,
        pytest.raises(ValueError, match="without a cache"),
    ):
        prepare([problem("good")], cached)


def test_bad_settings_are_refused() -> None:
    for bad in ({"fewest": 5, "most": 4}, {"enough": 0}, {"similarity": 2.0}):
        with pytest.raises(ValueError, match=r"give|at least"):
            Settings(**bad)


def test_rows_of_the_schemas() -> None:
    row: dict[str, Any] = {
        "subset": "Data_Structure",
        "question_id": "q1",
        "question": "Return x.",
        "solution": GOOD,
        "test": "def test_a():\n    assert f(1) == 1\n",
        "test_info": [{"function_declaration": "def f(x):"}],
    }
    made = kodcode_problem(row)
    assert made.stage == "Data Structure/Algorithm"
    assert made.prompt == "Return x.\n\n```python\ndef f(x):\n```"
    assert made.tests.startswith("from solution import f\n")
    assert kodcode_problem({**row, "question": "def f(x): doubles"}).prompt == "def f(x): doubles"
    with pytest.raises(ValueError, match="Docs is none of Package, Data_Structure"):
        kodcode_problem({**row, "subset": "Docs"})
    made = mbpp_problem(
        {"task_id": 7, "text": "Return x. ", "code": GOOD, "test_list": ["assert f(1) == 1"] * 3}
        | {"challenge_test_list": ["assert f(2) == 2"], "test_setup_code": ""}
    )
    assert (made.id, made.tests.count("def test_")) == ("mbpp/7", 4)
    meta = {"difficulty": "Meidum", "question_title": "Return x.", "lang_code": "class Solution:"}
    made = leetcode_problem(
        {"task_id": "same", "prompt": "import math\n", "completion": "class Solution: pass"}
        | {"entry_point": "Solution().f", "test": "def check(c):\n    assert c(1) == 1\n"}
        | {"meta": json.dumps(meta)}
    )
    assert made.stage == "leetcode medium"
    assert "```python\nimport math\n\nclass Solution:\n```" in made.prompt


def test_the_hub_and_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {
        "subset": ["Apps", "Docs", "Package"],
        "question_id": ["a", "b", "c"],
        "question": ["One.", "Two.", None],
        "solution": [GOOD] * 3,
        "test": [TESTS] * 3,
    }
    table = datasets.Dataset.from_dict(rows)
    calls = []

    def load(name: str, split: str) -> Any:
        calls.append((name, split))
        return table

    monkeypatch.delenv("SPHERE_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load)
    found = load_candidates("kodcode")
    assert calls == [("KodCode/KodCode-V1", "train")]
    assert [(made.id, made.stage) for made in found.problems] == [("kodcode/a", "Codeforces/Apps")]
    assert [drop.reason for drop in found.dropped] == ["no stage", "unusable row"]

    (tmp_path / "code").mkdir()
    table.to_parquet(tmp_path / "code" / "kodcode.parquet")
    assert load_candidates("kodcode", tmp_path) == found
    by_path = load_candidates(str(tmp_path / "code" / "kodcode.parquet"))
    assert [made.stage for made in by_path.problems] == ["Codeforces/Apps", "Docs"]
    table.remove_columns("test").to_parquet(tmp_path / "code" / "kodcode.parquet")
    with pytest.raises(DataError, match="lacks the columns test"):
        load_candidates("kodcode", tmp_path)
    (tmp_path / "code" / "kodcode.parquet").write_text("nothing")
    with pytest.raises(DataError, match="is not a readable Parquet file"):
        load_candidates("kodcode", tmp_path)
    with pytest.raises(DataError, match=r"mbpp.parquet does not exist.*load_dataset"):
        load_candidates("mbpp", tmp_path)
    with pytest.raises(DataError, match="did you mean humaneval"):
        load_candidates("human-eval", tmp_path)
    with pytest.raises(DataError, match="name it with --data"):
        load_candidates("leetcode")


@pytest.mark.skipif("SPHERE_DATA" not in os.environ, reason="needs the folder SPHERE_DATA")
@pytest.mark.parametrize("name", ["mbpp", "humaneval", "leetcode", "kodcode-demo"])
def test_published_problems(name: str, sandbox: Sandbox) -> None:
    found = load_candidates(name)
    assert len(found.problems) > 100
    assert len(found.dropped) < 5
    some = found.problems[:: len(found.problems) // 8][:8]
    prepared = prepare(some, sandbox, found.settings)
    assert len(prepared.problems) >= 2
    assert all(kept.visible in kept.nodes for kept in prepared.problems)


def _prepare(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["problems", "prepare", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command(tmp_path: Path, sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    datasets = pytest.importorskip("datasets")
    source, out, lost = (tmp_path / name for name in ("some.parquet", "out.jsonl", "lost.jsonl"))
    wrong = "def f(x):\n    return 1\n"
    rows = {
        "subset": ["Leetcode"] * 3,
        "question_id": ["a", "b", "c"],
        "question": ["Give back x itself.", "Sort these words.", "Count to ten, slowly."],
        "solution": [GOOD, GOOD, wrong],
        "test_code": [TESTS] * 3,
    }
    datasets.Dataset.from_dict(rows).to_parquet(source)
    code, text, _ = _prepare(capsys, source, "--out", out, "--dropped", lost)
    assert code == 0
    assert "reference fails" in text
    assert "2 problems with 4-12 nodes" in text
    assert {kept.id for kept in read_problems(out)} == {"kodcode/a", "kodcode/b"}
    assert json.loads(lost.read_text())["id"] == "kodcode/c"
    code, text, _ = _prepare(capsys, source, "--out", out, "--json", "--nodes", "2-4")
    result = json.loads(text)
    assert result["dropped"] == {"Leetcode": {"reference fails": 1}}
    assert (sum(result["kept"]["Leetcode"].values()), result["nodes"]) == (2, [2, 4])

    datasets.Dataset.from_dict({**rows, "solution": [wrong] * 3}).to_parquet(source)
    before = out.read_bytes()
    code, _, err = _prepare(capsys, source, "--out", out)
    assert (code, "is left: reference fails 3 (first: kodcode/" in err) == (2, True)
    assert out.read_bytes() == before


def test_the_command_finds_bad_input_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    for words, message in (
        (("none.parquet", "--out", out), "none.parquet does not exist"),
        (("micr", "--out", out), "did you mean micro"),
        (("mbpp", "--out", out, "--data", tmp_path), "mbpp.parquet does not exist"),
        (("micro", "--out", tmp_path / "no" / "out"), "name a file in a folder that exists"),
        (("micro", "--out", tmp_path), "cannot be written"),
        (("micro", "--out", out, "--nodes", "few"), "two numbers such as 4-12"),
        (("micro", "--out", out, "--nodes", "5-4"), "fewest <= most"),
        (("micro", "--out", out, "--enough", "0"), "enough = 0"),
        (("micro", "--out", out, "--workers", "0"), "workers = 0"),
    ):
        code, _, err = _prepare(capsys, *words)
        assert (code, message in err) == (2, True), err
    assert not out.exists()
