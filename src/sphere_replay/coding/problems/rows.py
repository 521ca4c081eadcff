"""Rows of published collections as problems: what the model is asked, and pytest files."""

import json
from collections.abc import Mapping
from typing import Any

from .problem import Problem
from .pytest_files import (
    called_declaration,
    file_from_asserts,
    file_from_check,
    narrowed,
    with_solution,
)

Row = Mapping[str, Any]

KODCODE_STAGES: dict[str, str] = {
    "Package": "Package",
    "Data_Structure": "Data Structure/Algorithm",
    "Algorithm": "Data Structure/Algorithm",
    "Leetcode": "Leetcode",
    "Codeforces": "Codeforces/Apps",
    "Apps": "Codeforces/Apps",
}
"""KodCode's subsets -> the paper's four stages; other subsets are not used."""


class NoStageError(ValueError):
    """A row that belongs to no stage."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"the subset {stage} is none of {', '.join(KODCODE_STAGES)}")
        self.stage = stage


def kodcode_problem(row: Row) -> Problem:
    """A problem of one of the paper's four stages."""
    if row["subset"] not in KODCODE_STAGES:
        raise NoStageError(str(row["subset"]))
    return kodcode_like_problem(row)


def kodcode_like_problem(row: Row) -> Problem:
    """The same of a file with KodCode's columns; a subset without a stage is a stage itself.

    The question comes first, then the declarations that it does not show itself: without them
    nobody could know what the tests import.
    """
    subset = str(row["subset"])
    question = row["question"].strip()
    shown = [d for d in _declarations(row.get("test_info")) if d.rstrip(":") not in question]
    return Problem(
        id=f"kodcode/{row['question_id']}",
        stage=KODCODE_STAGES.get(subset, subset),
        prompt=_with_code(question, "\n".join(shown)),
        reference=row["solution"],
        tests=narrowed(
            with_solution(row["test"] if row.get("test") else row["test_code"]), row["solution"]
        ),
    )


def mbpp_problem(row: Row) -> Problem:
    """Every assert is a node; the text, which names no function, is followed by its declaration."""
    asserts = [*row["test_list"], *(row["challenge_test_list"] or [])]
    reference = row["code"].replace("\r\n", "\n")
    return Problem(
        id=f"mbpp/{row['task_id']}",
        stage="mbpp",
        prompt=_with_code(row["text"].strip(), called_declaration(reference, asserts[0])),
        reference=reference,
        tests=narrowed(file_from_asserts(asserts, row["test_setup_code"] or ""), reference),
    )


def humaneval_problem(row: Row) -> Problem:
    """The prompt is a function to be completed; every statement of `check` that asserts a node."""
    prompt, name = row["prompt"], row["entry_point"]
    reference = prompt + row["canonical_solution"]
    return Problem(
        id=row["task_id"],
        stage="humaneval",
        prompt=prompt,
        reference=reference,
        tests=narrowed(file_from_check(row["test"], name), reference, given=prompt, own=[name]),
    )


def leetcode_problem(row: Row) -> Problem:
    """A question with the code to start from; its difficulty is its stage."""
    meta = json.loads(row["meta"])
    difficulty = meta["difficulty"].lower().replace("meidum", "medium")  # sic, in 21 rows
    start = f"{row['prompt'].strip()}\n\n{meta['lang_code'].strip()}"
    reference = f"{row['prompt']}\n\n{row['completion']}"
    tests = file_from_check(row["test"], row["entry_point"])
    return Problem(
        id=f"leetcode/{row['task_id']}",
        stage=f"leetcode {difficulty}",
        prompt=_with_code(meta["question_title"].strip(), start),
        reference=reference,
        tests=narrowed(tests, reference, given=row["prompt"], own=["Solution"]),
    )


def _declarations(info: Any) -> list[str]:
    """KodCode's function declarations: a list of objects, or its JSON text."""
    entries = json.loads(info) if isinstance(info, str) else info
    return [entry["function_declaration"].strip() for entry in entries or []]


def _with_code(words: str, code: str) -> str:
    return f"{words}\n\n```python\n{code}\n```" if code else words
