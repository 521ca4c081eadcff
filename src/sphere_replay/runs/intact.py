"""Whether results can be what they say: shapes, and the range of every number, wherever read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sphere_replay.errors import DataError
from sphere_replay.runs.records import record_of

_PARTS = ("metrics", "replay", "reward", "costs", "course")
_LARGEST = 1e150
"""Statistics square what they are given."""
_MISFITS = (AttributeError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""What content of another form raises; RuntimeError is torch's, of numbers that no tensor takes."""
_REMEDY = "restore it from a copy, or make it again"


@contextmanager
def blaming(where: object) -> Iterator[None]:
    """Content that does not fit together is the file's fault: the error names it."""
    try:
        yield
    except DataError:
        raise
    except _MISFITS as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{where} is damaged: {said}; {_REMEDY}") from error


def check_results(results: Mapping[str, Any], where: object) -> None:
    """Refuse results, or what a collection keeps of them, that no run can have.

    All metrics are accuracies in [0, 1] or differences of two.
    """
    with blaming(where):
        for part in _PARTS:
            if part in results and not isinstance(results[part], dict | None):
                raise TypeError(f"{part} should be an object, not {_kind(results[part])}")
        for name, value in (results.get("metrics") or {}).items():
            if value is not None and not (_is_number(value) and -1 <= value <= 1):
                raise ValueError(f"{name} = {_shown(value)} is not in [-1, 1]")
        for part in ("replay", "reward", "costs"):
            for name, value in (results.get(part) or {}).items():
                _check_numbers(value, f"{part}.{name}")
        for name, value in (results.get("costs") or {}).items():
            if not value >= 0:
                raise ValueError(f"costs.{name} = {_shown(value)} is negative")
        if course := results.get("course"):
            _check_course(course)
        if "accuracy" in results:
            record_of(results)
            _check_numbers(list(results.get("task_ends", ())), "task_ends")


def check_entry(entry: Any, where: object) -> None:
    """Refuse an entry of a collection that does not say whose results it has, or has none."""
    with blaming(where):
        if not isinstance(entry, dict):
            raise TypeError(f"an entry should be an object, not {_kind(entry)}")
        for name, kind in (("method", str), ("column", str), ("seed", int), ("metrics", dict)):
            if not isinstance(entry[name], kind):
                raise TypeError(f"{name} should be {kind.__name__}, not {_kind(entry[name])}")
        if not isinstance(entry.get("pair", 0), int | str):
            raise TypeError(f"pair should be a number or text, not {_kind(entry['pair'])}")
        if "code" in entry:
            code = entry["code"]
            if not (isinstance(code, dict) and set(code) == {"version", "commit", "digest"}):
                raise TypeError("code should be version, commit and digest")
            if not all(isinstance(part, str | None) for part in code.values()):
                raise TypeError("version, commit and digest of the code should be texts")
    check_results(entry, where)


def _check_course(course: Mapping[str, Any]) -> None:
    for name in ("task_ends", "anytime", "tasks"):
        if not isinstance(course[name], list):
            raise TypeError(f"course.{name} should be a list, not {_kind(course[name])}")
    points, rows = course["anytime"], course["tasks"]
    if not all(isinstance(point, list) and len(point) == 2 for point in points):
        raise ValueError("course.anytime should be pairs of a step and an accuracy")
    if not all(isinstance(row, list) and len(row) == len(rows[0]) > 0 for row in rows):
        raise ValueError("course.tasks should be rows of accuracies, all of one length")
    if not all(_is_number(step) for step in [*course["task_ends"], *(step for step, _ in points)]):
        raise ValueError("course.task_ends and course.anytime should have numbers of steps")
    accuracies = [accuracy for _, accuracy in points]
    accuracies += [value for row in rows for value in row if value is not None]
    if not all(_is_number(value) and 0 <= value <= 1 for value in accuracies):
        raise ValueError("an accuracy of the course is not in [0, 1]")


def _check_numbers(value: Any, where: str) -> None:
    """Finite numbers, nothing, or lists of both."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_numbers(item, f"{where}[{index}]")
    elif value is not None and not _is_number(value):
        raise TypeError(f"{where} should be a finite number, got {_shown(value)}")


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -_LARGEST <= value <= _LARGEST
    )


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
