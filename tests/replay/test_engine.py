"""The engine: when it scores, whom it draws, and at what strength."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

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
from sphere_replay.allocation import Sphere
from sphere_replay.memory import Memory
from sphere_replay.replay import (
    Economy,
    Engine,
    MirProportional,
    MirTop,
    SphereSelection,
    Uniform,
    Weighting,
)
from sphere_replay.scoring import Scores


@pytest.mark.parametrize(
    ("every", "expected"), [(1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 3, 6]), (4, [0, 4]), (100, [0])]
)
def test_memories_are_scored_at_every_nth_draw(every: int, expected: list[int]) -> None:
    replay = Engine(filled(8), Given(), generator=generator(), every=every)
    assert scorings(replay, Scorer(torch.ones(8)), 7) == expected


def test_a_new_task_scores_at_its_first_draw_and_counts_from_there() -> None:
    replay = Engine(filled(8), Given(), generator=generator(), every=4)
    scorer = Scorer(torch.ones(8))
    assert scorings(replay, scorer, 2) == [0]
    replay.start_task()
    replay.start_task()
    assert scorings(replay, scorer, 9) == [0, 4, 8]


def test_a_second_draw_of_a_step_neither_scores_nor_counts() -> None:
    scorer = Scorer(torch.ones(20))
    replay = Engine(filled(20), Given(), generator=generator(), every=2)
    for _ in range(4):
        first, second = replay.draw(5, scorer), replay.redraw(5)
        assert len(set(second.indices.tolist())) == 5
        assert first.indices.tolist() != second.indices.tolist()
    assert len(scorer.asked) == 2
    with pytest.raises(ValueError, match="follows a draw"):
        Engine(filled(20), Given(), generator=generator()).redraw(5)


def test_a_second_draw_follows_the_same_weights() -> None:
    weights = [0.0, 1.0, 3.0, 0.0, 4.0]
    replay = Engine(filled(5), Given(), generator=generator(), replacement=True)
    replay.draw(2, Scorer(torch.tensor(weights)))
    assert_drawn_by(weights, replay.redraw(MANY).indices.bincount(minlength=5) / MANY)


def test_uniform_replay_never_asks_for_scores() -> None:
    replay = Engine(filled(8), Uniform(), generator=generator())
    replay.start_task()
    draws = [replay.draw(4, no_scores) for _ in range(5)]
    assert all(draw.scale == 1.0 for draw in draws)
    assert replay.weighting is None


def test_without_a_selection_replay_is_uniform() -> None:
    assert isinstance(Engine(filled(2), generator=generator()).selection, Uniform)


@pytest.mark.parametrize("selection", [Uniform(), MirProportional()])
def test_an_empty_memory_is_an_error_before_anything_is_scored(selection: Any) -> None:
    replay = Engine(Memory(4, Scripted()), selection, generator=generator())
    with pytest.raises(ValueError, match="memory is empty"):
        replay.draw(2, no_scores)


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": -1}, {"pool": 0}, {"pool": "all"}])
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least (1|one)"):
        Engine(filled(2), generator=generator(), **wrong)


def test_a_draw_says_what_happened() -> None:
    replay = Engine(filled(8), Given(0.5), generator=generator(), every=3)
    draws = [replay.draw(2, Scorer(torch.ones(8))) for _ in range(4)]
    assert [draw.rescored for draw in draws] == [True, False, False, True]
    assert [draw.cost for draw in draws] == [16, 0, 0, 16]
    assert draws[0].weighting is draws[2].weighting is not draws[3].weighting
    assert replay.weighting is not None
    assert draws[3].weighting is replay.weighting.bare
    second = replay.redraw(2)
    assert (second.rescored, second.cost, second.weighting) == (False, 0, replay.weighting)
    uniform = replay.draw_uniformly(2)
    assert (uniform.rescored, uniform.cost, uniform.weighting) == (False, 0, None)


def test_the_interval_is_the_selections_own_unless_given() -> None:
    intervals = [
        Engine(filled(8), selection, generator=generator()).schedule.every
        for selection in (Given(), MirProportional(), SphereSelection(Sphere.vision()))
    ]
    assert intervals == [1, 1, 4]


def test_a_pool_that_cannot_give_a_draw_is_an_error() -> None:
    replay = Engine(filled(8), Given(), generator=generator(), pool=3)
    with pytest.raises(ValueError, match="a pool of 3 candidates cannot give 4 distinct"):
        replay.draw(4, no_scores)
    again = Engine(filled(8), Given(), generator=generator(), pool=3, replacement=True)
    assert len(again.draw(4, Scorer(torch.ones(8)))) == 4


def test_a_state_without_its_memory_is_an_error() -> None:
    replay = Engine(filled(8), Given(), generator=generator())
    replay.draw(2, Scorer(torch.ones(8)))
    other = Engine(filled(5), Given(), generator=generator())
    with pytest.raises(ValueError, match="weights for 8 memories, but the memory holds 5"):
        other.load_state_dict(replay.state_dict())


def test_the_running_scale_of_one_scoring_is_told_to_the_next() -> None:
    selection = Given()
    replay = Engine(filled(4), selection, generator=generator(), every=2)
    scorings(replay, Scorer(torch.ones(4)), 5)
    replay.start_task()
    scorings(replay, Scorer(torch.ones(4)), 1)
    assert selection.told == [None, 1.0, 2.0, 3.0]


def test_what_was_weighed_before_is_let_go_before_memories_are_scored_again() -> None:
    replay = Engine(
        filled(16), SphereSelection(Sphere.vision(2, 4)), generator=generator(), every=1
    )
    draw = replay.draw(4, Scorer(torch.arange(16.0)))
    assert replay.weighting is not None
    assert replay.weighting.allocation is not None
    geometry = weakref.ref(replay.weighting.allocation.geometry)
    alive = [geometry() is not None]

    class Looking(Scorer):
        def __call__(self, slots: Tensor, *, increments: bool = True) -> Scores:
            alive.append(geometry() is not None)
            return super().__call__(slots, increments=increments)

    draw = replay.draw(4, Looking(torch.arange(16.0)))  # as in a loop, which holds the last one
    assert draw.rescored
    assert alive == [True, False]


# Whom it draws.


def test_uniform_draws_are_uniform() -> None:
    replay = Engine(filled(6), generator=generator(), replacement=True)
    observed = replay.draw(MANY, no_scores).indices.bincount(minlength=6) / MANY
    assert_drawn_by([1.0] * 6, observed)


def test_uniform_distinct_draws_are_uniform() -> None:
    replay = Engine(filled(6), generator=generator())
    drawn = torch.cat([replay.draw(2, no_scores).indices for _ in range(6000)])
    observed = drawn.bincount(minlength=6) / len(drawn)
    assert observed.tolist() == pytest.approx([1 / 6] * 6, abs=0.015)


def test_memories_are_drawn_by_their_weights() -> None:
    weights = [0.1, 0.0, 0.4, 0.5]
    scorer = Scorer(torch.tensor(weights))
    replay = Engine(filled(4), Given(), generator=generator(), replacement=True)
    assert_drawn_by(weights, frequencies(replay, scorer, 4))
    assert scorer.asked[0].tolist() == [0, 1, 2, 3]


def test_the_sum_of_the_weights_is_for_the_scale_not_for_the_draw() -> None:
    weights = [0.05, 0.0, 0.2, 0.25]
    replay = Engine(filled(4), Given(mass=0.5), generator=generator(), replacement=True)
    assert_drawn_by(weights, frequencies(replay, Scorer(torch.tensor(weights)), 4))


def test_a_draw_holds_the_rows_of_its_slots_and_keeps_them() -> None:
    memory = Memory(8, Scripted())
    memory.add(x=torch.arange(8) * 10, y=torch.arange(8) * 100)
    draw = Engine(memory, generator=generator()).draw(5, no_scores)
    assert len(draw) == 5
    assert torch.equal(draw["x"], draw.indices * 10)
    assert torch.equal(draw["y"], draw.indices * 100)
    memory.update(torch.arange(8), x=torch.zeros(8, dtype=torch.int64))
    assert torch.equal(draw["x"], draw.indices * 10)


@pytest.mark.parametrize("selection", [Uniform(), Given()])
def test_distinct_draws_are_distinct_and_never_more_than_there_are(selection: Any) -> None:
    scorer = Scorer(torch.tensor([0.9, 0.05, 0.03, 0.01, 0.01]))
    replay = Engine(filled(5), selection, generator=generator())
    for count in (1, 3, 5, 50):
        indices = replay.draw(count, scorer).indices.tolist()
        assert len(indices) == min(count, 5)
        assert len(set(indices)) == len(indices)


@pytest.mark.parametrize("selection", [Uniform(), Given()])
def test_draws_with_replacement_are_as_many_as_asked_for(selection: Any) -> None:
    replay = Engine(filled(3), selection, generator=generator(), replacement=True)
    assert len(replay.draw(50, Scorer(torch.ones(3)))) == 50


def test_if_too_few_have_weight_they_all_come_and_others_fill_up() -> None:
    increments = torch.tensor([0.0, 5.0, 1.0, 4.0, 2.0, 3.0])
    replay = Engine(filled(6), MirTop(2), generator=generator())
    others = set()
    for _ in range(40):
        indices = set(replay.draw(3, Scorer(increments)).indices.tolist())
        assert {1, 3} < indices
        others |= indices - {1, 3}
    assert others == {0, 2, 4, 5}


def test_without_any_weight_the_draw_is_uniform_and_counts_nothing() -> None:
    replay = Engine(filled(4), Given(mass=0.0), generator=generator(), replacement=True)
    scorer = Scorer(torch.zeros(4))
    assert_drawn_by([1.0] * 4, frequencies(replay, scorer, 4))
    assert replay.draw(2, scorer).scale == 0.0


@pytest.mark.parametrize(
    ("weighting", "told"),
    [
        (torch.ones(4), "must return a Weighting, got Tensor"),
        (Weighting(torch.full((3,), 1 / 3)), r"one weight per scored memory is expected, \[4\]"),
        (Weighting(torch.tensor([0.5, torch.nan, 0.5, 0.0])), "finite and not negative"),
        (Weighting(torch.tensor([1.5, -0.5, 0.0, 0.0])), "finite and not negative"),
        (Weighting(torch.ones(4)), "the sum is 4, the mass 1"),
    ],
)
def test_weights_that_no_draw_can_be_made_by_are_refused(weighting: Weighting, told: str) -> None:
    class Odd(Given):
        def weigh(
            self, scores: Scores, running_scale: float | None, generator: torch.Generator
        ) -> Weighting:
            return weighting

    replay = Engine(filled(4), Odd(), generator=generator())
    with pytest.raises(ValueError, match=f"selection Odd: .*{told}"):
        replay.draw(2, Scorer(torch.ones(4)))


@pytest.mark.parametrize(("unit_mass", "scale"), [(False, 0.625), (True, 1.0)])
def test_the_scale_is_the_mass_unless_told_otherwise(unit_mass: bool, scale: float) -> None:
    replay = Engine(filled(4), Given(0.625), generator=generator(), unit_mass=unit_mass)
    assert replay.draw(2, Scorer(torch.ones(4))).scale == scale


def test_unit_mass_changes_the_scale_and_nothing_else() -> None:
    drawn = []
    for unit_mass in (False, True):
        replay = Engine(filled(9), Given(0.5), generator=generator(), unit_mass=unit_mass)
        scorer = Scorer(torch.arange(1.0, 10.0))
        drawn.append([replay.draw(4, scorer).indices.tolist() for _ in range(4)])
    assert drawn[0] == drawn[1]


def failing(slots: Tensor, *, increments: bool = True) -> Scores:
    raise RuntimeError("no gradient")


def test_a_scoring_that_fails_is_made_up_for_at_the_next_draw() -> None:
    replay = Engine(filled(8), Given(), generator=generator(), every=3)
    with pytest.raises(RuntimeError, match="no gradient"):
        replay.draw(2, failing)
    scorer = Scorer(torch.ones(8))
    assert [replay.draw(2, scorer).rescored for _ in range(3)] == [True, False, False]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no gradient"):
            replay.draw(2, failing)
    assert replay.draw(2, scorer).rescored


def test_a_scoring_that_fails_leaves_weights_with_their_slots() -> None:
    replay = Engine(filled(40), Given(), generator=generator(), every=1, pool=6)
    replay.draw(2, Scorer(torch.ones(40)))
    before = replay.schedule.slots.tolist()
    with pytest.raises(RuntimeError, match="no gradient"):
        replay.draw(2, failing)
    assert replay.schedule.slots.tolist() == before


def test_the_default_device_does_not_leak_into_draws() -> None:
    memory, table = filled(20), torch.ones(20)
    with torch.device("meta"):
        uniform = Engine(memory, Uniform(), generator=generator())
        pooled = Engine(memory, Given(), generator=generator(), pool=9)
        economical = Engine(memory, Given(), generator=generator(), economy=Economy(landmarks=4))
        drawn = [
            uniform.draw(3, no_scores),
            pooled.draw(3, Scorer(table)),
            economical.draw(3, Scorer(table)),
        ]
    assert all(draw.indices.device.type == "cpu" for draw in drawn)
