"""Generated micro-problems in four stages: one-line functions that a tiny model can learn to write.

A prompt says in a few words what `f` returns; the reference is one expression; the tests are six
calls with known answers. Stages share words and forms (`x plus 3` is asked for in three of them),
so that learning one stage moves what was learned in another. Everything follows from an id and a
seed: no file is needed.
"""

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch

from sphere_replay.randomness import generator_for

from .micro_wrong import evaluate, expression_of, near_misses, program_of
from .problem import SPLIT_SIZES, Problem
from .splits import split_problems

_NODES = 6
_DIGITS, _LETTERS = "23456789", "abcdef"
_CHOICES = {"a": _DIGITS, "b": _DIGITS, "c": _LETTERS, "d": _LETTERS, "n": "1234"}


@dataclass(frozen=True)
class Form:
    """A family of problems: {a}, {b}, {n} stand for digits, {c}, {d} for letters."""

    argument: str
    """`x` an integer, `s` a text, `xs` a list of integers."""
    words: str
    expression: str

    def settings(self) -> Iterator[tuple[str, ...]]:
        """All that the gaps can be filled with; two letters differ."""
        for values in product(*(_CHOICES[gap] for gap in self.gaps)):
            if "d" not in self.gaps or values[-2] != values[-1]:  # gaps are sorted: c, d are last
                yield values

    @property
    def gaps(self) -> tuple[str, ...]:
        """Names of the gaps, in order of the alphabet."""
        found = {name for _, name, _, _ in string.Formatter().parse(self.expression) if name}
        return tuple(sorted(found))


STAGES: dict[str, dict[str, Form]] = {
    "arithmetic": {
        "plus": Form("x", "x plus {a}", "x + {a}"),
        "minus": Form("x", "x minus {a}", "x - {a}"),
        "times": Form("x", "x times {a}", "x * {a}"),
        "from": Form("x", "{a} minus x", "{a} - x"),
        "square": Form("x", "x times x plus {a}", "x * x + {a}"),
        "line": Form("x", "x times {a} plus {b}", "x * {a} + {b}"),
        "drop": Form("x", "x times {a} minus {b}", "x * {a} - {b}"),
        "shift": Form("x", "the sum of x and {a} times {b}", "(x + {a}) * {b}"),
        "rest": Form("x", "the rest of x by {a} plus {b}", "x % {a} + {b}"),
        "part": Form("x", "x divided by {a} minus {b}", "x // {a} - {b}"),
        "away": Form("x", "the distance of x from {a} times {b}", "abs(x - {a}) * {b}"),
    },
    "text": {
        "after": Form("s", "s then {c}", "s + '{c}'"),
        "before": Form("s", "{c} then s", "'{c}' + s"),
        "around": Form("s", "{c} then s then {d}", "'{c}' + s + '{d}'"),
        "reverse": Form("s", "s reversed then {c}", "s[::-1] + '{c}'"),
        "upper": Form("s", "s in capitals then {c}", "s.upper() + '{c}'"),
        "replace": Form("s", "s with {c} made {d}", "s.replace('{c}', '{d}')"),
        "repeat": Form("s", "s times {a} then {c}", "s * {a} + '{c}'"),
        "first": Form("s", "the first {n} of s then {c}", "s[:{n}] + '{c}'"),
        "skip": Form("s", "s without the first {n} then {c}", "s[{n}:] + '{c}'"),
        "last": Form("s", "{c} then the last {n} of s", "'{c}' + s[-{n}:]"),
        "count": Form("s", "the count of {c} in s plus {a}", "s.count('{c}') + {a}"),
        "length": Form("s", "the length of s times {a} plus {b}", "len(s) * {a} + {b}"),
    },
    "lists": {
        "plus": Form("xs", "each of xs plus {a}", "[x + {a} for x in xs]"),
        "line": Form("xs", "each of xs times {a} plus {b}", "[x * {a} + {b} for x in xs]"),
        "above": Form("xs", "those of xs above {a}", "[x for x in xs if x > {a}]"),
        "below": Form("xs", "those of xs below {a} plus {b}", "[x + {b} for x in xs if x < {a}]"),
        "first": Form("xs", "the first {n} of xs then {b}", "xs[:{n}] + [{b}]"),
        "skip": Form("xs", "xs without the first {n} then {b}", "xs[{n}:] + [{b}]"),
        "sum": Form("xs", "the sum of xs times {a} plus {b}", "sum(xs) * {a} + {b}"),
        "most": Form("xs", "the most of xs minus {a}", "max(xs) - {a}"),
        "count": Form("xs", "the count of {a} in xs plus {b}", "xs.count({a}) + {b}"),
        "least": Form("xs", "the {n} least of xs", "sorted(xs)[:{n}]"),
    },
    "choices": {
        "least": Form("x", "x but at least {a}", "max(x, {a})"),
        "most": Form("x", "x but at most {a}", "min(x, {a})"),
        "keep": Form("x", "x if x above {a} else {b}", "x if x > {a} else {b}"),
        "swap": Form("x", "{a} if x below {b} else x", "{a} if x < {b} else x"),
        "even": Form(
            "x", "x plus {a} if x even else x minus {b}", "x + {a} if x % 2 == 0 else x - {b}"
        ),
        "yes": Form("x", "yes if x divides by {a} else no", "'yes' if x % {a} == 0 else 'no'"),
        "sign": Form(
            "x", "x times {a} if x below 0 else x plus {b}", "x * {a} if x < 0 else x + {b}"
        ),
        "word": Form("x", "{c} if x above {a} else {d}", "'{c}' if x > {a} else '{d}'"),
    },
}
"""Forms by stage and name; a problem's id is `micro/stage/form/setting`."""


@cache
def micro_family() -> tuple[Problem, ...]:
    """All micro-problems, stage by stage, more than 300 in each; none is in a split yet."""
    return tuple(
        _made(stage, name, setting)
        for stage, forms in STAGES.items()
        for name, form in forms.items()
        for setting in form.settings()
    )


def micro_problems(seed: int = 0, sizes: Mapping[str, int] = SPLIT_SIZES) -> tuple[Problem, ...]:
    """Micro-problems of all four stages in splits of the given sizes; other seeds draw others."""
    chosen, _ = split_problems(micro_family(), seed, sizes)
    return tuple(chosen)


def wrong_programs(problem: Problem) -> tuple[str, ...]:
    """Plausible programs that do not solve a micro-problem, those that earn the reward first.

    They are the reference with one thing changed (another operator, a number off by one, a part
    forgotten, branches exchanged) and the program that knows the visible test by heart. Each fails
    at least one node; the first ones pass the visible node all the same.

    Raises:
        ValueError: If this is no micro-problem; programs of unknown origin are never run here.
    """
    made = {known.id: known for known in micro_family()}.get(problem.id)
    if made is None or (made.prompt, made.reference, made.tests) != (
        problem.prompt,
        problem.reference,
        problem.tests,
    ):
        raise ValueError(f"{problem.id!r} is no micro-problem: wrong programs are made for those")
    form = _form_of(problem)
    cases = dict(zip(made.nodes, _cases(made.id, form, expression_of(made.reference)), strict=True))
    argument, (given, answer) = form.argument, cases[made.visible]
    by_heart = [repr(answer), f"{answer!r} if {argument} == {given!r} else {argument}"]
    rewarded: list[str] = []
    others: list[str] = []
    for expression in dict.fromkeys([*near_misses(expression_of(made.reference)), *by_heart]):
        results = {n: evaluate(expression, argument, value) == a for n, (value, a) in cases.items()}
        if not all(results.values()):
            kind = rewarded if results[made.visible] else others
            kind.append(program_of(argument, expression))
    return tuple(rewarded + others)


def _form_of(problem: Problem) -> Form:
    _, stage, name, _ = problem.id.split("/")
    return STAGES[stage][name]


def _made(stage: str, name: str, setting: tuple[str, ...]) -> Problem:
    form = STAGES[stage][name]
    values = dict(zip(form.gaps, setting, strict=True))
    identity = f"micro/{stage}/{name}/{''.join(setting)}"
    expression = form.expression.format(**values)
    cases = _cases(identity, form, expression)
    tests = "from solution import f\n" + "".join(
        f"\n\ndef test_{number}():\n    assert f({given!r}) == {answer!r}\n"
        for number, (given, answer) in enumerate(cases, 1)
    )
    return Problem(
        id=identity,
        stage=stage,
        prompt=f"f({form.argument}) is {form.words.format(**values)}\n",
        reference=program_of(form.argument, expression),
        tests=tests,
        nodes=tuple(f"test_{number}" for number in range(1, _NODES + 1)),
    )


def _cases(identity: str, form: Form, expression: str) -> list[tuple[object, object]]:
    """Inputs and answers of a problem's tests; never all with the same answer."""
    generator = generator_for(0, f"tests of {identity}")
    for _ in range(1000):
        inputs: list[object] = []
        while len(inputs) < _NODES:
            drawn = _input(form.argument, generator)
            if drawn not in inputs:
                inputs.append(drawn)
        answers = [evaluate(expression, form.argument, value) for value in inputs]
        if any(answer != answers[0] for answer in answers):
            return list(zip(inputs, answers, strict=True))
    raise RuntimeError(f"{identity}: {expression!r} has the same value whatever the input")


def _input(argument: str, generator: torch.Generator) -> object:
    def integers(low: int, high: int, count: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    if argument == "x":
        return integers(-6, 13, 1)[0]
    length = integers(2, 6, 1)[0]
    if argument == "s":
        return "".join(_LETTERS[place] for place in integers(0, len(_LETTERS), length))
    return integers(0, 11, length)
