"""Every number a table prints, each with its formula, computed from one stored array.

Notation: T tasks learned, A[t, j] accuracy on task j after task t, a[t, c] accuracy on class c
after task t (Class-IL), both counted from 1 in the formulas. "Earlier" tasks and classes are those
that came before the last task: what was learned last had no time to be forgotten, and counting its
zeros would only dilute the mean.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from sphere_replay.runs.records import AccuracyRecord, TaskMatrix

Record = AccuracyRecord | TaskMatrix
Kind = TypeVar("Kind", AccuracyRecord, TaskMatrix)


@dataclass(frozen=True)
class Metric:
    """A named number with the formula that is printed beside it."""

    name: str
    title: str
    formula: str
    higher_is_better: bool
    compute: Callable[[Record], float | None]
    """None where the record does not determine it: one task has no forgetting, for example."""


def forgetting_of_tasks(matrix: TaskMatrix) -> Tensor:
    """max_{j<=t<=T} A[t, j] - A[T, j] for the earlier tasks; `[T - 1]`, never negative."""
    accuracy = matrix.seen
    best = accuracy.tril().amax(0)  # accuracies are not negative, so the zeros above never win
    return (best - accuracy[-1])[:-1]


def forgetting_of_classes(record: AccuracyRecord) -> Tensor:
    """Best a[t, c] over the checkpoints since class c was seen, minus a[T, c]; earlier classes."""
    earlier = record.task_of_class < len(record.after_task) - 1
    accuracy = record.after_task[:, earlier]
    return accuracy.nan_to_num(0.0).amax(0) - accuracy[-1]


def incremental_accuracies(matrix: TaskMatrix) -> Tensor:
    """Mean accuracy over the tasks seen so far, after each task; `[T]`."""
    accuracy = matrix.seen
    return accuracy.tril().sum(1) / torch.arange(1, len(accuracy) + 1)


def measure(record: Record) -> dict[str, float]:
    """All metrics that the record determines, by name."""
    values = {name: metric.compute(record) for name, metric in METRICS.items()}
    return {name: value for name, value in values.items() if value is not None}


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if values.numel() else None


def _average(values: Iterable[float]) -> float | None:
    return _mean(torch.tensor(list(values), dtype=torch.float64))


def _worst(values: Tensor, count: int) -> float | None:
    """Mean of the `count` largest values, of all if there are fewer."""
    return _mean(values.sort(descending=True).values[:count])


def _fifth(values: Tensor) -> int:
    return -(-values.numel() // 5)  # ceil(0.2 n) without rounding errors


def _of_tasks(compute: Callable[[TaskMatrix], float | None]) -> Callable[[Record], float | None]:
    """Of any record: classes are put together to their tasks."""
    return lambda record: compute(record.tasks() if isinstance(record, AccuracyRecord) else record)


def _of(
    kind: type[Kind], compute: Callable[[Kind], float | None]
) -> Callable[[Record], float | None]:
    """Of one kind of record alone."""
    return lambda record: compute(record) if isinstance(record, kind) else None


def _final(matrix: TaskMatrix) -> float | None:
    return _mean(matrix.seen[-1])


def _incremental(matrix: TaskMatrix) -> float | None:
    return _mean(incremental_accuracies(matrix))


def _worst_class(record: AccuracyRecord) -> float | None:
    seen = record.task_of_class < len(record.after_task)
    return float(record.after_task[-1, seen].min())


def _cvar(record: AccuracyRecord) -> float | None:
    forgetting = forgetting_of_classes(record)
    return _worst(forgetting, _fifth(forgetting))


def _tail(matrix: TaskMatrix) -> float | None:
    forgetting = forgetting_of_tasks(matrix)
    return _worst(forgetting, max(2, _fifth(forgetting)))


def _bwt(matrix: TaskMatrix) -> float | None:
    return _mean((matrix.seen[-1] - matrix.seen.diagonal())[:-1])


def _checkpoint_average(matrix: TaskMatrix) -> float | None:
    return None if bool(matrix.seen.isnan().any()) else _mean(matrix.seen)


_REGISTERED = (
    Metric(
        "class_il",
        "Class-IL",
        "(1/T) Σ_j A[T, j], A[T, j] over the test examples of task j, no task identity",
        True,
        _of(AccuracyRecord, lambda record: _final(record.tasks())),
    ),
    Metric(
        "tail_accuracy",
        "Tail acc.",
        "mean Class-IL accuracy at ten evenly spaced steps of the last quarter of the last task",
        True,
        _of(AccuracyRecord, lambda record: _average(record.tail)),
    ),
    Metric(
        "tail_task_accuracy",
        "Tail acc.",
        "mean of (1/T) Σ_j A[·, j] at evenly spaced steps of the last quarter of the last task",
        True,
        _of(TaskMatrix, lambda matrix: _average(matrix.tail)),
    ),
    Metric(
        "likely_tail_accuracy",
        "Tail acc. by likelihood",
        "tail_task_accuracy, the likeliest of the task's labels counting as the answer",
        True,
        _of(TaskMatrix, lambda matrix: _average(matrix.likely_tail)),
    ),
    Metric(
        "task_il",
        "Task-IL",
        "(1/T) Σ_j A[T, j] with the task identity given",
        True,
        _of(AccuracyRecord, lambda record: _final(record.tasks(task_il=True))),
    ),
    Metric(
        "aaa",
        "AAA",
        "(1/T) Σ_t (1/t) Σ_{j<=t} A[t, j], Class-IL",
        True,
        _of(AccuracyRecord, lambda record: _incremental(record.tasks())),
    ),
    Metric(
        "anytime_accuracy",
        "Anytime acc.",
        "mean over the anytime evaluations of the Class-IL accuracy over the classes seen so far",
        True,
        _of(AccuracyRecord, lambda record: _average(value for _, value in record.anytime)),
    ),
    Metric(
        "average_forgetting",
        "avgF",
        "mean over earlier classes c of max_t a[t, c] - a[T, c]",
        False,
        _of(AccuracyRecord, lambda record: _mean(forgetting_of_classes(record))),
    ),
    Metric("worst_class", "Worst class", "min_c a[T, c]", True, _of(AccuracyRecord, _worst_class)),
    Metric(
        "cvar_02",
        "CVaR_0.2",
        "mean of the ceil(0.2 n) largest of max_t a[t, c] - a[T, c] over the n earlier classes",
        False,
        _of(AccuracyRecord, _cvar),
    ),
    Metric("final_accuracy", "Final acc.", "(1/T) Σ_j A[T, j]", True, _of_tasks(_final)),
    Metric(
        "incremental_accuracy",
        "Incremental acc.",
        "(1/T) Σ_t (1/t) Σ_{j<=t} A[t, j]",
        True,
        _of_tasks(_incremental),
    ),
    Metric(
        "new_task_accuracy",
        "New task acc.",
        "(1/T) Σ_j A[j, j]",
        True,
        _of_tasks(lambda matrix: _mean(matrix.seen.diagonal())),
    ),
    Metric(
        "old_accuracy",
        "Old",
        "(1/(T-1)) Σ_{j<T} A[T, j]",
        True,
        _of_tasks(lambda matrix: _mean(matrix.seen[-1, :-1])),
    ),
    Metric(
        "worst_task",
        "Worst",
        "min_j A[T, j]",
        True,
        _of_tasks(lambda matrix: float(matrix.seen[-1].min())),
    ),
    Metric(
        "mean_forgetting",
        "Mean forgetting",
        "(1/(T-1)) Σ_{j<T} f_j, f_j = max_{j<=t<=T} A[t, j] - A[T, j]",
        False,
        _of_tasks(lambda matrix: _mean(forgetting_of_tasks(matrix))),
    ),
    Metric(
        "worst_forgetting",
        "Worst forgetting",
        "max_{j<T} f_j, f_j = max_{j<=t<=T} A[t, j] - A[T, j]",
        False,
        _of_tasks(lambda matrix: _worst(forgetting_of_tasks(matrix), 1)),
    ),
    Metric(
        "tail_forgetting",
        "Tail forgetting",
        "mean of the max(2, ceil(0.2 (T-1))) largest f_j, j < T (of all f_j if T = 2)",
        False,
        _of_tasks(_tail),
    ),
    Metric(
        "top2_forgetting",
        "Top-2 forgetting",
        "mean of the two largest f_j, j < T (of all f_j if T = 2)",
        False,
        _of_tasks(lambda matrix: _worst(forgetting_of_tasks(matrix), 2)),
    ),
    Metric("bwt", "BWT", "(1/(T-1)) Σ_{j<T} (A[T, j] - A[j, j])", True, _of_tasks(_bwt)),
    Metric(
        "checkpoint_average",
        "Checkpoint average",
        "(1/T²) Σ_t Σ_j A[t, j], tasks still to come included",
        True,
        _of_tasks(_checkpoint_average),
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _REGISTERED}
"""All metrics by name; a new one is one function and one entry."""
