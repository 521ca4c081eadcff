"""Test files from asserts, near duplicates, splits: everything that runs no program."""

import ast

import pytest
import torch

from sphere_replay.coding.problems import (
    Problem,
    hashed_ngrams,
    near_duplicates,
    split_problems,
    split_sizes,
)
from sphere_replay.coding.problems.examine import (
    FAILING,
    FOREIGN_IMPORT,
    NOT_PYTHON,
    UNSTABLE,
    check_imports,
    check_stability,
)
from sphere_replay.coding.problems.pytest_files import (
    called_declaration,
    file_from_asserts,
    file_from_check,
    narrowed,
    with_solution,
)
from sphere_replay.sandbox import Verdict

CHECK = """
import math
def check(candidate):
    assert True, "fine"
    assert candidate(1) == 1
    limit = 3
    for x in range(limit):
        assert candidate(x) == x
"""


def problem(name: str = "p", reference: str = "import math\n", tests: str = "") -> Problem:
    return Problem(name, "stage", f"prompt of {name}", reference, tests)


def test_every_assert_becomes_a_node() -> None:
    made = file_from_asserts(["assert f(1)=='\\n'", "assert f(2) == 2"], "a = 1\r\nb = 2")
    names = [node.name for node in ast.parse(made).body if isinstance(node, ast.FunctionDef)]
    assert names == ["test_1", "test_2"]
    assert made.startswith("from solution import *\na = 1\nb = 2\n")


def test_check_functions_are_taken_apart() -> None:
    made = ast.parse(file_from_check(CHECK, "Solution().f"))
    first, second = [node for node in made.body if isinstance(node, ast.FunctionDef)]
    assert ast.unparse(first.body[0]) == "candidate = Solution().f"
    assert [type(statement).__name__ for statement in first.body] == ["Assign", "Assert"]
    assert [type(statement).__name__ for statement in second.body] == ["Assign", "Assign", "For"]
    with pytest.raises(ValueError, match="one function check"):
        file_from_check("def test(): pass", "f")


def test_declarations_and_imports() -> None:
    reference = "def g(): pass\ndef f(a: int, b=2): pass\n"
    assert called_declaration(reference, "assert set(f(1)) == {2}") == "def f(a: int, b=2):"
    assert called_declaration(reference, "assert h(1)") == ""
    assert with_solution("x = 1").startswith("from solution import *\n")
    assert with_solution("from solution import f\n") == "from solution import f\n"


def test_tests_take_from_programs_only_what_is_theirs() -> None:
    given = "import math\nclass Node: pass\ndef same(a, b): return near(a, b)\n"
    given += "def near(a, b): return math.isclose(a, b)\ndef f(x):\n    'to be written'\n"
    reference = f"from cmath import phase\n{given}\nLIMIT = 3\ndef g(): pass\n"
    tests = "from solution import *\n\ndef test_1():\n    x = phase(1)\n"
    tests += "    assert same(f(LIMIT), abs(x))\n"
    made = narrowed(tests, reference, given, own=["f"])
    assert made.startswith("import math\nfrom cmath import phase\nfrom solution import f, LIMIT\n")
    assert "def same(a, b)" in made
    assert "def near(a, b)" in made  # which same needs
    assert "class Node" not in made
    assert "*" not in made
    own_sum = narrowed("from solution import *\nassert sum(1, 2) == 3\n", "def sum(a, b): pass\n")
    assert own_sum.startswith("from solution import sum\n")
    named = "from solution import f\n"
    assert narrowed(named, reference) == named
    assert narrowed("from solution import *\n1 +", reference) == "from solution import *\n1 +"


def test_only_the_standard_library() -> None:
    fine = problem(reference="import os.path\n", tests="import pytest\nfrom solution import f\n")
    assert check_imports(fine).reason == ""
    hidden = problem(reference="def f():\n    from numpy.linalg import norm\n")
    assert check_imports(hidden).reason == FOREIGN_IMPORT
    assert check_imports(hidden).detail == "imports numpy"
    assert check_imports(problem(reference="import pytest\n")).reason == FOREIGN_IMPORT
    assert check_imports(problem(reference="from . import x\n")).reason == FOREIGN_IMPORT
    assert check_imports(problem(reference="def f(:\n")).reason == NOT_PYTHON
    assert check_imports(problem(tests="x = '\\('\n")).reason == ""  # no warning either


def test_what_two_runs_disagree_on_does_not_count() -> None:
    def verdict(**nodes: str) -> Verdict:
        return Verdict(nodes, "finished")

    first = verdict(a="passed", b="passed", c="passed", d="passed")
    second = verdict(a="passed", b="failed", c="passed", e="passed")
    examined = check_stability(problem(), first, second, 2)
    assert examined.problem.nodes == ("a", "c")
    assert examined.unstable == ("b", "d", "e")
    assert check_stability(problem(), first, second, 3).reason == UNSTABLE
    failing = verdict(a="failed", b="passed")
    assert check_stability(problem(), failing, failing, 1).reason == FAILING


def test_near_duplicates_keep_the_first() -> None:
    prompts = [
        "Write a function that returns the sum of all even numbers in a list of integers.",
        "Parse a date written as year, month and day, and give the day of the week.",
        "Write a function that returns the sum of all even numbers in a list of integers",
        "Find the longest word of a sentence; of equal ones the first.",
        "Parse a date written as year, month and day, and give the day of the week.",
    ]
    assert near_duplicates(prompts) == {2: 0, 4: 1}
    assert near_duplicates(prompts, above=1.0) == {4: 1}
    assert near_duplicates([]) == {}


def test_embeddings_are_centered_before_they_are_compared() -> None:
    # Far from the origin all raw cosines are near 1; around their mean the points differ.
    points = torch.tensor([[10.0, 1.0], [10.0, -1.0], [10.0, 1.001]])
    assert near_duplicates(["a", "b", "c"], lambda prompts: points) == {2: 0}
    with pytest.raises(ValueError, match="3 rows"):
        near_duplicates(["a", "b", "c"], lambda prompts: points[:2])


def test_hashed_ngrams_see_order() -> None:
    first, second, third = hashed_ngrams(["a before b", "b before a", "a before b"])
    assert torch.equal(first, third)
    assert not torch.equal(first, second)
    assert hashed_ngrams([""]).abs().sum() == 0


@pytest.mark.parametrize("available", [0, 1, 2, 7, 59, 150, 299, 300, 1000])
def test_sizes_scale_down_in_proportion(available: int) -> None:
    sizes = split_sizes(available)
    assert sum(sizes.values()) == min(available, 300)
    for name, share in {"train": 0.4, "evaluation": 1 / 3, "fit": 0.1333, "probe": 0.1333}.items():
        assert abs(sizes[name] - share * min(available, 300)) < 1.01


def test_splits_are_disjoint_seeded_and_blind_to_order() -> None:
    problems = [problem(f"p{i}") for i in range(40)]
    sizes = {"train": 12, "evaluation": 10, "fit": 4, "probe": 4}
    chosen, beyond = split_problems(problems, 0, sizes)
    assert len({p.id for p in chosen} | {p.id for p in beyond}) == 40
    assert {name: sum(p.split == name for p in chosen) for name in sizes} == sizes
    assert all(p.split == "" for p in beyond)
    assert split_problems(problems[::-1], 0, sizes)[0] == chosen
    assert split_problems(problems, 1, sizes)[0] != chosen
    with pytest.raises(ValueError, match="no such split: test"):
        split_problems(problems, 0, {"test": 1})
    with pytest.raises(ValueError, match="one must be positive"):
        split_problems(problems, 0, {"train": 0})
