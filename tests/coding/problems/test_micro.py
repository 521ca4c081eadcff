"""The generated family: solvable, varied, and with rewards that wrong programs can earn."""

import ast
from collections import Counter
from dataclasses import replace

import pytest

from sphere_replay.coding.problems import digest, micro_family, micro_problems, wrong_programs
from sphere_replay.coding.problems.micro import STAGES
from sphere_replay.coding.problems.micro_wrong import near_misses
from sphere_replay.sandbox import Sandbox, Trial

SAMPLE = micro_family()[::97]


def test_four_stages_of_distinct_problems() -> None:
    family = micro_family()
    counts = Counter(problem.stage for problem in family)
    assert list(counts) == list(STAGES)
    assert min(counts.values()) >= 300
    for field in ("id", "prompt", "reference", "tests"):
        assert len({getattr(problem, field) for problem in family}) == len(family), field
    assert all(len(problem.nodes) == 6 for problem in family)
    assert max(len(problem.reference) for problem in family) < 70


def test_problems_follow_from_the_seed() -> None:
    sizes = {"train": 6, "evaluation": 5, "fit": 2, "probe": 2}
    problems = micro_problems(3, sizes)
    assert digest(problems) == digest(micro_problems(3, sizes))
    assert digest(problems) != digest(micro_problems(4, sizes))
    assert Counter(problem.split for problem in problems) == {k: 4 * v for k, v in sizes.items()}
    assert len(micro_problems()) == 4 * 300


def test_references_pass_and_wrong_programs_do_not(sandbox: Sandbox) -> None:
    few = SAMPLE[::3]
    trials = [Trial(problem.reference, problem.tests) for problem in few]
    assert all(verdict.passed for verdict in sandbox.run_many(trials))
    for problem in few[:4]:
        wrong = [wrong_programs(problem)[place] for place in (0, -1)]
        first, last = sandbox.run_many(Trial(program, problem.tests) for program in wrong)
        assert not first.passed
        assert first.nodes[problem.visible] == "passed"
        assert not last.passed
        assert last.nodes[problem.visible] == "failed"


def test_some_wrong_programs_earn_the_reward() -> None:
    by_near_miss = unrewarded = 0
    for problem in SAMPLE:
        wrong = wrong_programs(problem)
        assert len(set(wrong)) == len(wrong) >= 3
        assert problem.reference not in wrong
        results = [_passes(program, problem.tests) for program in wrong]
        visible = [result[problem.visible] for result in results]
        assert not any(all(result.values()) for result in results)
        # Those that earn the reward come first, and there are some.
        assert visible == sorted(visible, reverse=True)
        assert visible[0]
        unrewarded += not all(visible)
        by_near_miss += sum(visible) > 2  # two of them know the visible test by heart
    assert by_near_miss >= len(SAMPLE) // 4
    assert unrewarded >= len(SAMPLE) // 2


def test_near_misses_change_one_thing() -> None:
    assert near_misses("x + 3") == ["x - 3", "x", "3", "x + 4", "x + 2"]
    assert "x if x > 4 else 5" in near_misses("x if x > 4 else 6")
    assert "x if x >= 4 else 6" in near_misses("x if x > 4 else 6")
    assert "[x for x in xs]" in near_misses("[x for x in xs if x > 2]")


def test_programs_of_others_are_not_run() -> None:
    problem = SAMPLE[0]
    assert wrong_programs(replace(problem, split="train")) == wrong_programs(problem)
    foreign = replace(problem, reference="def f(x):\n    return open('/etc/passwd')\n")
    for other in (foreign, replace(problem, id="mbpp/1")):
        with pytest.raises(ValueError, match="no micro-problem"):
            wrong_programs(other)


def _passes(program: str, tests: str) -> dict[str, bool]:
    """Which nodes one of our own programs passes, without a sandbox."""
    space: dict[str, object] = {}
    exec(program, space)
    results = {}
    for function in ast.parse(tests).body[1:]:
        assert isinstance(function, ast.FunctionDef)
        try:
            exec(ast.unparse(function.body[0]), space)
            results[function.name] = True
        except Exception:  # whatever a wrong program raises, it did not pass
            results[function.name] = False
    return results
