"""Records: what they refuse, what is visible, and files that come back as they were."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sphere_replay.coding.problems import Problem, digest, read_problems, write_problems
from sphere_replay.errors import DataError

PROBLEM = Problem("p/1", "first", "Add é.", "def f(): pass\n", "", ("test_a", "test_b", "test_c"))


def test_the_visible_node_comes_first_by_hash() -> None:
    hashes = {n: hashlib.sha256(f"p/1\n{n}".encode()).hexdigest() for n in PROBLEM.nodes}
    assert PROBLEM.visible == sorted(PROBLEM.nodes, key=hashes.__getitem__)[0]
    assert replace(PROBLEM, nodes=PROBLEM.nodes[::-1]).visible == PROBLEM.visible
    # Another id, another order: the choice is not the same everywhere.
    assert len({replace(PROBLEM, id=f"p/{i}").visible for i in range(20)}) == 3
    with pytest.raises(ValueError, match="prepare it first"):
        _ = replace(PROBLEM, nodes=()).visible


def test_files_keep_everything(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    problems = (PROBLEM, replace(PROBLEM, id="p/2", split="train"))
    write_problems(path, problems)
    assert read_problems(path) == problems
    assert digest(problems) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest(problems) != digest(problems[::-1])
    assert digest(problems[:1]) != digest(problems[1:])


def test_the_judge_is_written_where_it_is_not_the_strict_one(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    shared = replace(PROBLEM, id="p/2", judge="shared", why_shared="the tests derive from a class")
    write_problems(path, [PROBLEM, shared])
    first, second = path.read_text().splitlines()
    assert "judge" not in json.loads(first)  # files from before there was one stay the same
    assert json.loads(second)["judge"] == "shared"
    assert read_problems(path) == (PROBLEM, shared)
    with pytest.raises(ValueError, match="there are strict, shared"):
        replace(PROBLEM, judge="kind")


def test_bad_records_are_refused() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        replace(PROBLEM, prompt=" ")
    with pytest.raises(ValueError, match="there are train, evaluation, fit, probe"):
        replace(PROBLEM, split="test")
    with pytest.raises(ValueError, match="names a node twice"):
        replace(PROBLEM, nodes=("test_a", "test_a"))
    with pytest.raises(ValueError, match="2 problems have the id 'p/1'"):
        write_problems(Path("nowhere"), [PROBLEM, PROBLEM])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no problem"),
        (b"{}\n", "line 1: expected an object with id, stage"),
        (b"[1]\n", "got list"),
        (b"\n{\n", "line 2"),
        (b"\xff", "is not a UTF-8 text"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_problems(path)
    with pytest.raises(DataError, match="sphere problems prepare"):
        read_problems(tmp_path / "none.jsonl")


def test_lines_with_values_of_the_wrong_kind_are_named(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    write_problems(path, [PROBLEM])
    row = json.loads(path.read_text())
    for name, value in (("nodes", "test_a"), ("nodes", [1]), ("prompt", 3)):
        path.write_text(json.dumps({**row, name: value}))
        with pytest.raises(DataError, match=r"line 1: .*text"):
            read_problems(path)
    line = json.dumps(row)
    path.write_text(f"{line}\n{line}\n")
    with pytest.raises(DataError, match="line 2: a second problem with the id 'p/1'"):
        read_problems(path)
