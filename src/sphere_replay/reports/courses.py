"""How a run went along its stream: accuracy over what was seen so far, and on each task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sphere_replay.runs.metrics import Record, incremental_accuracies
from sphere_replay.runs.records import AccuracyRecord, record_of

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Array = NDArray[float64]

Matrix = list[list[float | None]]
"""Accuracy on each task (columns) after each task (rows); None where it was not measured."""

_DIGITS = 4
"""Of what is kept of a course: a picture shows no more."""


@dataclass(frozen=True)
class Curve:
    """Anytime accuracies of one run, and the steps at which its tasks ended."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    ends: tuple[int, ...]


def record_in(results: Mapping[str, Any]) -> Record | None:
    """The accuracies of a run's results, if they are all there."""
    saved = results.get("accuracy")
    known = saved and (saved.get("after_task") or saved.get("values"))
    return record_of(results) if known else None


def curve_of(results: Mapping[str, Any], name: str = "a run") -> Curve | None:
    """The curve of a run's results, or of what a collection keeps of them; errors say the name."""
    if kept := results.get("course"):
        points = kept["anytime"]
        steps, values = zip(*points, strict=True) if points else ((), ())
        return Curve(steps, values, tuple(kept["task_ends"])) if points else None
    record = record_in(results)
    ends = tuple(results.get("task_ends", ()))
    if record is not None and not isinstance(record, AccuracyRecord):
        return Curve(ends, tuple(incremental_accuracies(record).tolist()), ends)
    if record is None or not record.anytime:
        return None
    steps, values = zip(*record.anytime, strict=True)
    if len(ends) != len(record.after_task) or not set(ends) <= set(steps):
        raise ValueError(
            f"{name}: its task_ends {list(ends)} should be the last steps of "
            f"{len(record.after_task)} tasks, each with an anytime accuracy; its results are "
            "incomplete or of an older version, remove its folder and run it again"
        )
    return Curve(steps, values, ends)


def matrix_of(results: Mapping[str, Any]) -> Matrix | None:
    """Accuracies on whole tasks after each task."""
    if kept := results.get("course"):
        found: Matrix = kept["tasks"]
        return found
    record = record_in(results)
    if record is None:
        return None
    matrix = record.tasks() if isinstance(record, AccuracyRecord) else record
    return [[None if x != x else x for x in row] for row in matrix.values.tolist()]


def shortened(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a collection keeps of a course: enough for curves and heat maps, in four digits."""
    curve, matrix = curve_of(results), matrix_of(results)
    if matrix is None:
        return None
    points = zip(curve.steps, curve.values, strict=True) if curve else ()
    return {
        "task_ends": list(results.get("task_ends", ())),
        "anytime": [[step, round(value, _DIGITS)] for step, value in points],
        "tasks": [[None if x is None else round(x, _DIGITS) for x in row] for row in matrix],
    }


def aligned(curves: Sequence[Curve], ends: "Array") -> "tuple[Array, Array]":
    """Steps `[n]` and accuracies in percent `[seeds, n]`, with the tasks ending at `ends`.

    Label noise makes a task a little longer or shorter from seed to seed. Stretched to common
    lengths, the fall after a boundary is averaged with the falls of the other seeds.
    """
    import numpy as np

    places = [np.interp(c.steps, (0, *c.ends), (0, *ends)).round(6) for c in curves]
    steps = np.unique(np.concatenate(places))
    steps = steps[steps >= max(place[0] for place in places)]  # from where all have been evaluated
    rows = [np.interp(steps, p, c.values) for p, c in zip(places, curves, strict=True)]
    return steps, 100 * np.stack(rows)


def mean_matrix(matrices: Sequence[Matrix]) -> Matrix:
    """The mean over runs, entry by entry, over those that have it."""
    rows, columns = len(matrices[0]), len(matrices[0][0])
    result: Matrix = []
    for t in range(rows):
        found = [[m[t][j] for m in matrices] for j in range(columns)]
        known = [[x for x in entries if x is not None] for entries in found]
        result.append([sum(entries) / len(entries) if entries else None for entries in known])
    return result
