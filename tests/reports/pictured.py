"""Small made-up runs for the pictures, with numbers that are easy to average by hand."""

import copy
from typing import Any

from sphere_replay.reports.collection import FinishedRun

METHODS = ("ER", "ER + MIR", "ER + SPHERE")
AFTER_TASK: list[list[float | None]] = [
    [0.9, 0.7, None, None, None, None],
    [0.5, 0.8, 1.0, 0.6, None, None],
    [0.4, 0.2, 0.7, 0.9, 1.0, 1.0],
]
FORGOTTEN = (50, 60, 30, 0)
"""In points, from `AFTER_TASK`: best minus last, for the classes of the first two tasks."""


def made_results(ends: tuple[int, int, int] = (10, 20, 30), shift: float = 0.0) -> dict[str, Any]:
    """Two classes a task; evaluations every 4 steps and, exactly, at the ends of the tasks."""
    values = dict.fromkeys(range(4, ends[-1], 4), 0.31 + shift)
    for task, end in enumerate(ends):
        seen = [value for value in AFTER_TASK[task] if value is not None]
        values[end] = sum(seen) / len(seen)
    return {
        "task_ends": list(ends),
        "accuracy": {
            "after_task": copy.deepcopy(AFTER_TASK),
            "task_il": copy.deepcopy(AFTER_TASK),
            "task_of_class": [0, 0, 1, 1, 2, 2],
            "counts": [5] * 6,
            "anytime": [[step, values[step]] for step in sorted(values)],
        },
        "replay": {"noisy_lift": 1.2 + shift},
    }


def made_runs(columns: tuple[str, ...] = ("40%",), seeds: int = 3) -> list[FinishedRun]:
    return [
        FinishedRun(method, column, seed, made_results(shift=0.1 * seed))
        for method in METHODS
        for column in columns
        for seed in range(seeds)
    ]
