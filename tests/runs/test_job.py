"""What jobs share: sums over the run, costs, ends of tasks, and a sentence on divergence."""

from dataclasses import asdict

import pytest

from sphere_replay.errors import DivergenceError
from sphere_replay.runs.job import Costs, ReplayTally, diverged, ends_of_tasks, ratio


def test_means_are_over_the_draws_that_have_the_number() -> None:
    tally = ReplayTally()
    tally.add({"mass": 1.0})
    tally.add({"mass": 0.5, "ess": 12.0})
    assert (tally.mean("mass"), tally.mean("ess"), tally.mean("lift")) == (0.75, 12.0, None)
    assert ReplayTally(**asdict(tally)) == tally


def test_costs_are_told_per_example_of_the_stream() -> None:
    assert Costs(forward=30, backward=20, scored=5).summary(10) == {
        "stream_examples": 10,
        "forward_per_example": 3.0,
        "backward_per_example": 2.0,
        "scored_per_example": 0.5,
    }


@pytest.mark.parametrize(
    ("tasks", "ends"),
    [([], []), ([0], [1]), ([0, 0, 1, 2, 2], [2, 3, 5]), ([3, 3, 1], [2, 3])],
)
def test_a_task_ends_where_the_next_begins_and_where_the_run_does(
    tasks: list[int], ends: list[int]
) -> None:
    assert ends_of_tasks(tasks) == ends


def test_a_part_of_nothing_is_none() -> None:
    assert (ratio(1, 4), ratio(0, 0)) == (0.25, None)


def test_divergence_is_told_with_its_step_and_a_remedy() -> None:
    told = diverged(DivergenceError("the loss is nan"), 7)
    assert str(told) == "the run has diverged at step 7: the loss is nan; try a lower lr"
    assert str(diverged(ValueError("x"))) == "the run has diverged: x; try a lower lr"
