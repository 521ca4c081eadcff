"""The controller: when it scores, whom it draws, and at what strength."""

from typing import Any

import pytest
import torch

from replay.scripted import (
    MANY,
    Given,
    Scorer,
    Scripted,
    assert_drawn_by,
    filled,
    frequencies,
    generator,
    no_scores,
    scorings,
)
from sphere_replay.memory import Memory
from sphere_replay.replay import (
    MirProportional,
    MirTop,
    Replay,
    Uniform,
)


@pytest.mark.parametrize(
    ("every", "expected"), [(1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 3, 6]), (4, [0, 4]), (100, [0])]
)
def test_memories_are_scored_at_every_nth_draw(every: int, expected: list[int]) -> None:
    replay = Replay(filled(8), Given(), generator=generator(), every=every)
    assert scorings(replay, Scorer(torch.ones(8)), 7) == expected


def test_a_new_task_scores_at_its_first_draw_and_counts_from_there() -> None:
    replay = Replay(filled(8), Given(), generator=generator(), every=4)
    scorer = Scorer(torch.ones(8))
    assert scorings(replay, scorer, 2) == [0]
    replay.start_task()
    replay.start_task()
    assert scorings(replay, scorer, 9) == [0, 4, 8]


def test_a_second_draw_of_a_step_neither_scores_nor_counts() -> None:
    scorer = Scorer(torch.ones(20))
    replay = Replay(filled(20), Given(), generator=generator(), every=2)
    for _ in range(4):
        first, second = replay.draw(5, scorer), replay.redraw(5)
        assert len(set(second.indices.tolist())) == 5
        assert first.indices.tolist() != second.indices.tolist()
    assert len(scorer.asked) == 2
    with pytest.raises(ValueError, match="follows a draw"):
        Replay(filled(20), Given(), generator=generator()).redraw(5)


def test_a_second_draw_follows_the_same_weights() -> None:
    weights = [0.0, 1.0, 3.0, 0.0, 4.0]
    replay = Replay(filled(5), Given(), generator=generator(), replacement=True)
    replay.draw(2, Scorer(torch.tensor(weights)))
    assert_drawn_by(weights, replay.redraw(MANY).indices.bincount(minlength=5) / MANY)


def test_uniform_replay_never_asks_for_scores() -> None:
    replay = Replay(filled(8), Uniform(), generator=generator())
    replay.start_task()
    draws = [replay.draw(4, no_scores) for _ in range(5)]
    assert all(draw.scale == 1.0 for draw in draws)
    assert replay.weighting is None


def test_without_a_selection_replay_is_uniform() -> None:
    assert isinstance(Replay(filled(2), generator=generator()).selection, Uniform)


@pytest.mark.parametrize("selection", [Uniform(), MirProportional()])
def test_an_empty_memory_is_an_error_before_anything_is_scored(selection: Any) -> None:
    replay = Replay(Memory(4, Scripted()), selection, generator=generator())
    with pytest.raises(ValueError, match="memory is empty"):
        replay.draw(2, no_scores)


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": -1}, {"pool": 0}, {"pool": -3}])
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least (1|one)"):
        Replay(filled(2), generator=generator(), **wrong)


def test_the_running_scale_of_one_scoring_is_told_to_the_next() -> None:
    selection = Given()
    replay = Replay(filled(4), selection, generator=generator(), every=2)
    scorings(replay, Scorer(torch.ones(4)), 5)
    replay.start_task()
    scorings(replay, Scorer(torch.ones(4)), 1)
    assert selection.told == [None, 1.0, 2.0, 3.0]


# Whom it draws.


def test_uniform_draws_are_uniform() -> None:
    replay = Replay(filled(6), generator=generator(), replacement=True)
    observed = replay.draw(MANY, no_scores).indices.bincount(minlength=6) / MANY
    assert_drawn_by([1.0] * 6, observed)


def test_uniform_distinct_draws_are_uniform() -> None:
    replay = Replay(filled(6), generator=generator())
    drawn = torch.cat([replay.draw(2, no_scores).indices for _ in range(6000)])
    observed = drawn.bincount(minlength=6) / len(drawn)
    assert observed.tolist() == pytest.approx([1 / 6] * 6, abs=0.015)


def test_memories_are_drawn_by_their_weights() -> None:
    weights = [0.1, 0.0, 0.4, 0.5]
    scorer = Scorer(torch.tensor(weights))
    replay = Replay(filled(4), Given(), generator=generator(), replacement=True)
    assert_drawn_by(weights, frequencies(replay, scorer, 4))
    assert scorer.asked[0].tolist() == [0, 1, 2, 3]


def test_the_sum_of_the_weights_is_for_the_scale_not_for_the_draw() -> None:
    weights = [0.05, 0.0, 0.2, 0.25]
    replay = Replay(filled(4), Given(mass=0.5), generator=generator(), replacement=True)
    assert_drawn_by(weights, frequencies(replay, Scorer(torch.tensor(weights)), 4))


def test_a_draw_holds_the_rows_of_its_slots_and_keeps_them() -> None:
    memory = Memory(8, Scripted())
    memory.add(x=torch.arange(8) * 10, y=torch.arange(8) * 100)
    draw = Replay(memory, generator=generator()).draw(5, no_scores)
    assert len(draw) == 5
    assert torch.equal(draw["x"], draw.indices * 10)
    assert torch.equal(draw["y"], draw.indices * 100)
    memory.update(torch.arange(8), x=torch.zeros(8, dtype=torch.int64))
    assert torch.equal(draw["x"], draw.indices * 10)


@pytest.mark.parametrize("selection", [Uniform(), Given()])
def test_distinct_draws_are_distinct_and_never_more_than_there_are(selection: Any) -> None:
    scorer = Scorer(torch.tensor([0.9, 0.05, 0.03, 0.01, 0.01]))
    replay = Replay(filled(5), selection, generator=generator())
    for count in (1, 3, 5, 50):
        indices = replay.draw(count, scorer).indices.tolist()
        assert len(indices) == min(count, 5)
        assert len(set(indices)) == len(indices)


@pytest.mark.parametrize("selection", [Uniform(), Given()])
def test_draws_with_replacement_are_as_many_as_asked_for(selection: Any) -> None:
    replay = Replay(filled(3), selection, generator=generator(), replacement=True)
    assert len(replay.draw(50, Scorer(torch.ones(3)))) == 50


def test_if_too_few_have_weight_they_all_come_and_others_fill_up() -> None:
    increments = torch.tensor([0.0, 5.0, 1.0, 4.0, 2.0, 3.0])
    replay = Replay(filled(6), MirTop(2), generator=generator())
    others = set()
    for _ in range(40):
        indices = set(replay.draw(3, Scorer(increments)).indices.tolist())
        assert {1, 3} < indices
        others |= indices - {1, 3}
    assert others == {0, 2, 4, 5}


def test_without_any_weight_the_draw_is_uniform_and_counts_nothing() -> None:
    replay = Replay(filled(4), Given(mass=0.0), generator=generator(), replacement=True)
    scorer = Scorer(torch.zeros(4))
    assert_drawn_by([1.0] * 4, frequencies(replay, scorer, 4))
    assert replay.draw(2, scorer).scale == 0.0


@pytest.mark.parametrize(("unit_mass", "scale"), [(False, 0.625), (True, 1.0)])
def test_the_scale_is_the_mass_unless_told_otherwise(unit_mass: bool, scale: float) -> None:
    replay = Replay(filled(4), Given(0.625), generator=generator(), unit_mass=unit_mass)
    assert replay.draw(2, Scorer(torch.ones(4))).scale == scale


def test_unit_mass_changes_the_scale_and_nothing_else() -> None:
    drawn = []
    for unit_mass in (False, True):
        replay = Replay(filled(9), Given(0.5), generator=generator(), unit_mass=unit_mass)
        scorer = Scorer(torch.arange(1.0, 10.0))
        drawn.append([replay.draw(4, scorer).indices.tolist() for _ in range(4)])
    assert drawn[0] == drawn[1]
