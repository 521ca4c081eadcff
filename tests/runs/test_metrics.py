"""Metrics against numbers worked out by hand, and the identities they must obey."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sphere_replay.runs.metrics import METRICS, measure
from sphere_replay.runs.records import AccuracyRecord, TaskMatrix

N = math.nan


def _record(**changes: object) -> AccuracyRecord:
    fields: dict[str, object] = {
        "after_task": torch.tensor(
            [[0.9, 0.7, N, N, N], [0.4, 0.8, 0.6, 1.0, N], [0.5, 0.2, 0.6, 0.3, 0.9]],
            dtype=torch.float64,
        ),
        "task_il": torch.tensor(
            [[0.9, 0.7, N, N, N], [0.8, 0.8, 0.9, 1.0, N], [0.6, 0.8, 0.7, 0.9, 1.0]],
            dtype=torch.float64,
        ),
        "task_of_class": torch.tensor([0, 0, 1, 1, 2]),
        "counts": torch.tensor([10, 30, 20, 20, 5]),
        "anytime": ((10, 0.8), (20, 0.5), (30, 0.2)),
        "tail": (0.25, 0.5, 0.375),
    }
    return AccuracyRecord(**{**fields, **changes})  # type: ignore[arg-type]  # checked at run time


# A[t, j] of the record by hand: [.75], [.7, .8], [.275, .45, .9].
BY_HAND = {
    "class_il": (0.275 + 0.45 + 0.9) / 3,
    "tail_accuracy": 0.375,
    "task_il": (0.75 + 0.8 + 1.0) / 3,
    "aaa": (0.75 + (0.7 + 0.8) / 2 + 1.625 / 3) / 3,
    "anytime_accuracy": 0.5,
    "average_forgetting": (0.4 + 0.6 + 0.0 + 0.7) / 4,
    "worst_class": 0.2,
    "cvar_02": 0.7,
    "final_accuracy": 1.625 / 3,
    "incremental_accuracy": (0.75 + 0.75 + 1.625 / 3) / 3,
    "new_task_accuracy": (0.75 + 0.8 + 0.9) / 3,
    "old_accuracy": (0.275 + 0.45) / 2,
    "worst_task": 0.275,
    "mean_forgetting": (0.475 + 0.35) / 2,
    "worst_forgetting": 0.475,
    "tail_forgetting": (0.475 + 0.35) / 2,
    "top2_forgetting": (0.475 + 0.35) / 2,
    "bwt": (0.275 - 0.75 + 0.45 - 0.8) / 2,
}


def test_every_metric_of_a_record_by_hand() -> None:
    measured = measure(_record())
    assert measured == pytest.approx(BY_HAND, abs=1e-14)
    # Tasks still to come were not evaluated, and the tail is one of classes.
    left_out = {"checkpoint_average", "tail_task_accuracy", "likely_tail_accuracy"}
    assert METRICS.keys() - measured.keys() == left_out


def test_every_metric_of_a_task_matrix_by_hand() -> None:
    values = [
        [0.5, 0.2, 0.1, 0.1],
        [0.6, 0.5, 0.2, 0.1],
        [0.4, 0.7, 0.6, 0.2],
        [0.45, 0.6, 0.5, 0.4],
    ]
    matrix = TaskMatrix(torch.tensor(values, dtype=torch.float64), (0.25, 0.5), (0.5, 1.0))
    measured = measure(matrix)
    assert TaskMatrix.from_dict(_saved(matrix)).likely_tail == (0.5, 1.0)
    assert measured == pytest.approx(
        {
            "tail_task_accuracy": 0.375,
            "likely_tail_accuracy": 0.75,
            "final_accuracy": 1.95 / 4,
            "incremental_accuracy": (0.5 + 0.55 + 1.7 / 3 + 1.95 / 4) / 4,
            "new_task_accuracy": (0.5 + 0.5 + 0.6 + 0.4) / 4,
            "old_accuracy": 1.55 / 3,
            "worst_task": 0.4,
            # The peak of tasks 1 and 2 comes after they were learned, so F is not -BWT here.
            "mean_forgetting": (0.15 + 0.1 + 0.1) / 3,
            "worst_forgetting": 0.15,
            "tail_forgetting": 0.125,
            "top2_forgetting": 0.125,
            "bwt": (-0.05 + 0.1 - 0.1) / 3,
            "checkpoint_average": 6.15 / 16,
        },
        abs=1e-14,
    )


def test_future_accuracies_count_only_in_the_checkpoint_average() -> None:
    values = torch.full((3, 3), 0.9, dtype=torch.float64).triu(1)
    values += torch.full((3, 3), 0.5, dtype=torch.float64).tril()
    with_future = measure(TaskMatrix(values))
    hidden = values.masked_fill(torch.ones(3, 3).triu(1).bool(), N)
    assert with_future.pop("checkpoint_average") == pytest.approx((3 * 0.9 + 6 * 0.5) / 9)
    assert with_future == measure(TaskMatrix(hidden))


def test_tail_is_the_worst_fifth_of_the_earlier_tasks() -> None:
    forgetting = [0.02 * j for j in range(14)]
    values = torch.full((15, 15), 0.5, dtype=torch.float64)
    values[-1, :14] -= torch.tensor(forgetting, dtype=torch.float64)
    measured = measure(TaskMatrix(values))
    assert measured["tail_forgetting"] == pytest.approx((0.26 + 0.24 + 0.22) / 3)
    assert measured["top2_forgetting"] == pytest.approx((0.26 + 0.24) / 2)


@pytest.mark.parametrize(("classes", "worst"), [(12, 2), (13, 3), (10, 2), (102, 20)])
def test_cvar_rounds_a_fifth_of_the_earlier_classes_up(classes: int, worst: int) -> None:
    earlier = classes - 2
    after = torch.ones(2, classes, dtype=torch.float64)
    after[0, earlier:] = N
    after[1, :earlier] = torch.linspace(0.0, 0.9, earlier, dtype=torch.float64)
    tasks = torch.tensor([0] * earlier + [1, 1])
    record = AccuracyRecord(after, after.clone(), tasks, torch.ones(classes, dtype=torch.int64))
    forgetting = sorted((1 - after[1, :earlier]).tolist(), reverse=True)
    assert measure(record)["cvar_02"] == pytest.approx(sum(forgetting[:worst]) / worst)


def test_one_task_has_no_forgetting() -> None:
    half = torch.full((1, 2), 0.5, dtype=torch.float64)
    record = AccuracyRecord(half, half, torch.tensor([0, 0]), torch.tensor([1, 1]))
    measured = measure(record)
    assert measured["class_il"] == measured["aaa"] == measured["checkpoint_average"] == 0.5
    absent = {"average_forgetting", "cvar_02", "bwt", "mean_forgetting", "tail_forgetting"}
    assert not absent & measured.keys()
    assert "anytime_accuracy" not in measured


def test_a_run_cut_short_is_measured_on_the_tasks_it_reached() -> None:
    whole = _record()
    short = AccuracyRecord(
        whole.after_task[:2], whole.task_il[:2], whole.task_of_class, whole.counts
    )
    measured = measure(short)
    assert measured["class_il"] == pytest.approx((0.7 + 0.8) / 2)
    assert measured["worst_class"] == 0.4
    assert measured["average_forgetting"] == pytest.approx((0.5 + 0.0) / 2)


def test_order_of_classes_does_not_matter() -> None:
    record = _record()
    order = torch.tensor([4, 3, 1, 0, 2])
    shuffled = AccuracyRecord(
        record.after_task[:, order],
        record.task_il[:, order],
        record.task_of_class[order],
        record.counts[order],
        record.anytime,
        record.tail,
    )
    assert measure(shuffled) == pytest.approx(measure(record), abs=1e-15)


@pytest.mark.parametrize(("final", "published"), [(36.8, 28.1), (27.2, 26.2), (19.8, 24.7)])
def test_gdumb_fitted_after_the_last_task_has_the_published_aaa(
    final: float, published: float
) -> None:
    """Before its only fit GDumb guesses among the 2t classes seen: accuracy 1/(2t)."""
    tasks = torch.arange(5).repeat_interleave(2)
    after = torch.stack(
        [torch.full((10,), 1 / (2 * t), dtype=torch.float64) for t in range(1, 6)]
    ).masked_fill(tasks > torch.arange(5).unsqueeze(1), N)
    after[-1] = final / 100
    record = AccuracyRecord(after, after, tasks, torch.full((10,), 1000))
    aaa = 100 * measure(record)["aaa"]
    assert aaa == pytest.approx((100 * (1 / 2 + 1 / 4 + 1 / 6 + 1 / 8) + final) / 5)
    assert aaa == pytest.approx(published, abs=0.11)  # a mean of AAAs, both rounded to 0.1


def test_directions_and_formulas() -> None:
    lower = {name for name, metric in METRICS.items() if not metric.higher_is_better}
    assert lower == {name for name in METRICS if "forgetting" in name} | {"cvar_02"}
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.formula
        assert "\n" not in metric.formula
        assert "\\" not in metric.formula


def test_records_survive_json_bit_for_bit() -> None:
    record = _record()
    text = json.dumps(_saved(record), allow_nan=False)
    back = AccuracyRecord.from_dict(json.loads(text))
    for name in ("after_task", "task_il", "task_of_class", "counts"):
        before, after = getattr(record, name), getattr(back, name)
        assert before.dtype == after.dtype
        assert torch.equal(before.nan_to_num(-1), after.nan_to_num(-1))
    assert back.anytime == record.anytime
    assert back.tail == record.tail
    assert AccuracyRecord.from_dict({**_saved(record), "tail": []}).tail == ()
    matrix = record.tasks()
    again = TaskMatrix.from_dict(json.loads(json.dumps(_saved(matrix), allow_nan=False)))
    assert torch.equal(matrix.values.nan_to_num(-1), again.values.nan_to_num(-1))


def _saved(record: AccuracyRecord | TaskMatrix) -> dict[str, Any]:
    """As jobs write it: plain lists, null for NaN."""
    saved: dict[str, Any] = {}
    for name, value in vars(record).items():
        rows = value.tolist() if isinstance(value, Tensor) else list(value)
        nested = isinstance(value, Tensor) and value.ndim == 2
        saved[name] = [[None if x != x else x for x in row] for row in rows] if nested else rows
    return saved


def _with(values: Tensor, row: int, column: int, value: float) -> Tensor:
    values = values.clone()
    values[row, column] = value
    return values


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"after_task": _with(_record().after_task, 2, 1, N)}, "evaluate every class seen"),
        ({"task_il": _with(_record().task_il, 0, 4, 0.5)}, "class 4 comes with task 2: leave NaN"),
        ({"after_task": _with(_record().after_task, 2, 1, 45.0)}, "fractions, not percentages"),
        ({"after_task": _record().after_task.float()}, "float64"),
        ({"task_il": _record().task_il[:2]}, "shape of after_task"),
        ({"counts": torch.tensor([10, 0, 1, 1, 1])}, "counts must be at least 1"),
        ({"counts": torch.tensor([10, 1])}, "one number per class"),
        ({"task_of_class": torch.tensor([0, 0, 1, 1, 1])}, "no class belongs to task 2"),
        ({"anytime": ((3, 1.5),)}, "at step 3 is 1.5"),
        ({"tail": (0.5, 45.0)}, "of the tail is 45.0"),
    ],
)
def test_wrong_records_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _record(**changes)


def test_wrong_task_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match="task 0 was learned by then, so evaluate it after task 1"):
        TaskMatrix(torch.tensor([[0.5, N], [N, 0.5]], dtype=torch.float64))
    with pytest.raises(ValueError, match="J >= T"):
        TaskMatrix(torch.zeros(3, 2, dtype=torch.float64))
