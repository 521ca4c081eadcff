"""Greedy programs: what a policy writes when it does not sample, and how much of it is right."""

from collections.abc import Sequence
from typing import Any

from sphere_replay.coding.grading import Grader
from sphere_replay.coding.models import prompt_ids
from sphere_replay.coding.problems import Problem
from sphere_replay.coding.programs import extract_program
from sphere_replay.language import token_batches
from sphere_replay.language.greedy import write_greedily


def accuracy(
    model: Any, tokenizer: Any, problems: Sequence[Problem], grader: Grader, *, length: int
) -> float:
    """Share of the problems whose greedy program passes the full suite."""
    programs = greedy_programs(model, tokenizer, problems, length=length)
    solved = grader.solved(list(zip(problems, programs, strict=True)))
    return sum(solved) / len(solved)


def greedy_programs(
    model: Any, tokenizer: Any, problems: Sequence[Problem], *, length: int, tokens: int = 8192
) -> list[str]:
    """Greedy programs of at most `length` tokens, in the order of the problems."""
    encoded = prompt_ids(problems, tokenizer)
    batches = token_batches([len(ids) + length for ids in encoded], tokens)
    written = write_greedily(model, tokenizer, encoded, length, batches, extra="coding")
    return [extract_program(text) for text in written]
