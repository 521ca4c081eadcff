"""What a model wrote: the program in it, whether it is rewarded, and whether it is right."""

from collections.abc import Iterator

import pytest

from sphere_replay.coding.grading import Grader, VisibleReward
from sphere_replay.coding.problems import Problem, micro_problems, wrong_programs
from sphere_replay.coding.programs import extract_program, text_of
from sphere_replay.sandbox import Sandbox, SandboxError, Trial, Verdict

CODE = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        (CODE, CODE),
        (f"Sure:\n```python\n{CODE}```\nThat is it.", CODE),
        (f"```\n{CODE}```", CODE),
        (f"``` py\n{CODE}```", CODE),
        (f"```Python3 title=x\n{CODE}\n```", CODE + "\n"),
        (f"```python\n{CODE}", CODE),
        (f"```python\nx = 1\n```\nBetter:\n```python\n{CODE}```", CODE),
        (f"```python\n{CODE}```\nRun it:\n```bash\npython a.py\n```", CODE),
        ("```bash\nls\n```", "```bash\nls\n```"),
        ("", ""),
        (" \n\t", ""),
        ("```python\n\n```", ""),
        ("I do not know.", "I do not know."),
    ],
)
def test_the_last_block_of_python_is_the_program(completion: str, program: str) -> None:
    assert extract_program(completion) == program


def test_completions_are_texts_or_messages() -> None:
    assert text_of("a") == "a"
    assert text_of([{"role": "assistant", "content": "b"}]) == "b"
    assert text_of([{"role": "assistant", "content": None}]) == ""
    with pytest.raises(TypeError, match="a completion is a text or a list of messages"):
        text_of(3)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(workers=2) as shared:
        yield shared


@pytest.fixture(scope="module")
def problem() -> Problem:
    """One with a wrong program that earns the reward, and one that does not."""
    return next(p for p in micro_problems(sizes={"train": 10}) if p.stage == "choices")


def test_a_reward_can_be_more_than_a_program_deserves(sandbox: Sandbox, problem: Problem) -> None:
    grader = Grader(sandbox)
    wrong = wrong_programs(problem)
    attempts = [(problem, program) for program in (problem.reference, wrong[0], wrong[-1], "", "(")]
    assert grader.rewards(attempts) == [True, True, False, False, False]
    assert grader.solved(attempts) == [True, False, False, False, False]


def test_only_the_visible_node_runs_for_a_reward(sandbox: Sandbox) -> None:
    """A program that hangs in another test is rewarded at once: nothing of it was seen."""
    tests = "from solution import f\n" + "".join(
        f"\n\ndef test_{n}():\n    assert f({n}) == {n}\n" for n in range(4)
    )
    nodes = tuple(f"test_{n}" for n in range(4))
    problem = Problem("slow", "stage", "f(x) is x", CODE, tests, nodes)
    given = problem.visible.removeprefix("test_")
    hangs = f"def f(x):\n    while x != {given}:\n        pass\n    return x\n"
    assert Grader(sandbox).rewards([(problem, hangs)]) == [True]


def test_surrogates_and_nul_bytes_are_judged_like_any_program(
    sandbox: Sandbox, problem: Problem
) -> None:
    assert Grader(sandbox).rewards([(problem, "\udc80"), (problem, "\0")]) == [False, False]


class Counting:
    """A sandbox that says of every program the same, and counts."""

    def __init__(self, ending: str = "finished") -> None:
        self.trials: list[Trial] = []
        self._ending = ending

    def run_many(self, trials: list[Trial]) -> list[Verdict]:
        self.trials += trials
        return [
            Verdict(dict.fromkeys(trial.nodes or (), "passed"), self._ending) for trial in trials
        ]


def test_equal_programs_of_a_problem_run_once(problem: Problem) -> None:
    counting = Counting()
    grader = Grader(counting)  # type: ignore[arg-type]  # all of a sandbox that a grader uses
    assert grader.solved([(problem, "a"), (problem, "b"), (problem, "a"), (problem, "")]) == [
        True,
        True,
        True,
        False,
    ]
    assert [trial.program for trial in counting.trials] == ["a", "b"]
    assert counting.trials[0].nodes == problem.nodes


def test_a_sandbox_that_breaks_is_no_verdict(problem: Problem) -> None:
    grader = Grader(Counting("broken"))  # type: ignore[arg-type]  # all of a sandbox that it uses
    with pytest.raises(SandboxError, match="could not be judged"):
        grader.rewards([(problem, "a")])


def test_the_reward_function_keeps_what_it_has_judged(problem: Problem) -> None:
    grader = Grader(Counting())  # type: ignore[arg-type]  # all of a sandbox that it uses
    reward = VisibleReward(grader, {problem.id: problem})
    message = [{"role": "assistant", "content": "```python\na\n```"}]
    assert reward(completions=[message, "b", ""], id=[problem.id] * 3, prompts=None) == [1, 1, 0]
    assert [(one.program, one.rewarded) for one in reward.taken()] == [
        ("a\n", True),
        ("b", True),
        ("", False),
    ]
    assert reward.taken() == []
    assert reward.seconds > 0
