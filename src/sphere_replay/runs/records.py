"""The stored arrays that every metric is computed from, offline and as often as one likes.

Tasks are numbered by their place in the stream. All accuracies lie in [0, 1].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TaskMatrix:
    """Accuracy on whole tasks after each task."""

    values: Tensor
    """A[t, j], float64 `[T, J]`: accuracy on task j after learning task t; J >= T.

    Entries of tasks still to come (j > t) may be measured or NaN; only `checkpoint_average` reads
    them. Columns j >= T belong to tasks that the run never reached.
    """
    tail: tuple[float, ...] = ()
    """Mean accuracies over all tasks at evenly spaced steps of the last quarter of the last one."""
    likely_tail: tuple[float, ...] = ()
    """The same where the likeliest of a task's labels counts as the answer."""

    def __post_init__(self) -> None:
        _check_array("values", self.values)
        rows, columns = self.values.shape
        if columns < rows:
            raise ValueError(
                f"values must have shape [T, J] with J >= T, one column per task and one row per "
                f"task learned, got {[rows, columns]}"
            )
        unmeasured = (self.values.isnan() & (_row(rows) >= torch.arange(columns))).nonzero()
        if len(unmeasured):
            t, j = unmeasured[0].tolist()
            raise ValueError(
                f"values[{t}, {j}] is NaN: task {j} was learned by then, so evaluate it after "
                f"task {t}"
            )

    @property
    def seen(self) -> Tensor:
        """The square part `[T, T]`: tasks the run has reached."""
        return self.values[:, : len(self.values)]

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "TaskMatrix":
        """From plain lists, as a run's results have them: null for NaN."""
        return cls(
            _to_tensor(saved["values"]),
            tail=tuple(map(float, saved.get("tail", ()))),
            likely_tail=tuple(map(float, saved.get("likely_tail", ()))),
        )


@dataclass(frozen=True, eq=False)
class AccuracyRecord:
    """Accuracy per class after each task: T tasks learned, C classes."""

    after_task: Tensor
    """Class-IL, float64 `[T, C]`: accuracy on test examples of class c after task t.

    NaN for exactly those classes whose task has not been reached yet.
    """
    task_il: Tensor
    """The same with the task identity given, `[T, C]`."""
    task_of_class: Tensor
    """int64 `[C]`: the task, counted from 0 in stream order, that brings each class."""
    counts: Tensor
    """int64 `[C]`: test examples per class, the weights inside a task's accuracy."""
    anytime: tuple[tuple[int, float], ...] = ()
    """(step, Class-IL accuracy over the classes seen so far), in the order measured."""
    tail: tuple[float, ...] = ()
    """Class-IL accuracies at evenly spaced steps of the last quarter of the last task."""

    def __post_init__(self) -> None:
        _check_array("after_task", self.after_task)
        tasks, classes = self.after_task.shape
        if self.task_il.shape != self.after_task.shape:
            raise ValueError(
                f"task_il must have the shape of after_task, {[tasks, classes]}, got "
                f"{list(self.task_il.shape)}"
            )
        _check_array("task_il", self.task_il)
        for name, least in (("task_of_class", 0), ("counts", 1)):
            values = getattr(self, name)
            if values.dtype != torch.int64 or list(values.shape) != [classes]:
                raise ValueError(
                    f"{name} must be int64 of shape {[classes]}, one number per class, got "
                    f"{values.dtype} of shape {list(values.shape)}"
                )
            if int(values.min()) < least:
                raise ValueError(f"{name} must be at least {least}, got {int(values.min())}")
        for task in range(tasks):
            if not bool((self.task_of_class == task).any()):
                raise ValueError(f"no class belongs to task {task}; every task needs at least one")
        self._check_seen("after_task")
        self._check_seen("task_il")
        for step, accuracy in self.anytime:
            if not 0 <= accuracy <= 1:
                raise ValueError(f"anytime accuracy at step {step} is {accuracy}, not in [0, 1]")
        for accuracy in self.tail:
            if not 0 <= accuracy <= 1:
                raise ValueError(f"an accuracy of the tail is {accuracy}, not in [0, 1]")

    def _check_seen(self, name: str) -> None:
        values: Tensor = getattr(self, name)
        wrong = (values.isnan() == (self.task_of_class <= _row(len(values)))).nonzero()
        if len(wrong):
            t, c = wrong[0].tolist()
            task = int(self.task_of_class[c])
            is_nan = bool(values[t, c].isnan())
            fix = "evaluate every class seen so far" if is_nan else "leave NaN until it is seen"
            raise ValueError(
                f"{name}[{t}, {c}] = {float(values[t, c])}, but class {c} comes with task {task}: "
                f"{fix}"
            )

    def tasks(self, *, task_il: bool = False) -> TaskMatrix:
        """A[t, j] = Σ_c n_c acc[t, c] / Σ_c n_c over the classes c of task j."""
        accuracy = self.task_il if task_il else self.after_task
        columns = []
        for task in range(len(accuracy)):
            members = self.task_of_class == task
            weights = self.counts[members].double()
            columns.append((accuracy[:, members] * weights).sum(1) / weights.sum())
        # A mean of numbers in [0, 1] may leave the interval by a rounding error.
        return TaskMatrix(torch.stack(columns, dim=1).clamp(0, 1))

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "AccuracyRecord":
        """From plain lists, as a run's results have them: null for NaN."""
        return cls(
            after_task=_to_tensor(saved["after_task"]),
            task_il=_to_tensor(saved["task_il"]),
            task_of_class=torch.tensor(saved["task_of_class"], dtype=torch.int64),
            counts=torch.tensor(saved["counts"], dtype=torch.int64),
            anytime=tuple((int(step), float(accuracy)) for step, accuracy in saved["anytime"]),
            tail=tuple(map(float, saved.get("tail", ()))),
        )


def record_of(results: Mapping[str, Any]) -> AccuracyRecord | TaskMatrix:
    """The accuracies in a run's results: per class in vision, per task elsewhere."""
    saved = results["accuracy"]
    by_class = "task_of_class" in saved
    return AccuracyRecord.from_dict(saved) if by_class else TaskMatrix.from_dict(saved)


def _check_array(name: str, values: Tensor) -> None:
    if values.dtype != torch.float64 or values.ndim != 2 or 0 in values.shape:
        raise ValueError(
            f"{name} must be a float64 matrix with a row for each task learned, got "
            f"{values.dtype} of shape {list(values.shape)}"
        )
    outside = ((values < 0) | (values > 1)).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        raise ValueError(
            f"{name}[{row}, {column}] = {float(values[row, column])} is not in [0, 1]; store "
            "fractions, not percentages"
        )


def _row(count: int) -> Tensor:
    return torch.arange(count).unsqueeze(1)


def _to_tensor(rows: list[list[float | None]]) -> Tensor:
    nan = float("nan")
    return torch.tensor(
        [[nan if x is None else x for x in row] for row in rows], dtype=torch.float64
    )
