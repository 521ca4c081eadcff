"""The controller: when it scores, whom it draws, at what strength, and that it can be resumed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from sphere_replay import Sphere
from sphere_replay.experiments.trees import flatten, from_bytes, to_bytes, unflatten
from sphere_replay.memory import Memory, Offer
from sphere_replay.replay import (
    MirProportional,
    MirTop,
    Replay,
    SphereSelection,
    Uniform,
    Weighting,
)
from sphere_replay.scoring import Scores

MANY = 40_000
"""Draws with replacement, from which the probabilities are read back."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Scripted:
    """Admission that places rows where the test says; fills up in order without a script."""

    name: ClassVar[str] = "scripted"
    draws: ClassVar[bool] = False

    def __init__(self) -> None:
        self.next: list[int] | None = None

    def place(self, offer: Offer) -> Tensor:
        if self.next is None:
            return torch.arange(offer.filled, offer.filled + offer.count)
        return torch.tensor(self.next)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        assert not state


def filled(size: int, capacity: int = 64) -> Memory:
    memory = Memory(capacity, Scripted())
    memory.add(x=torch.arange(size))
    return memory


def overwrite(memory: Memory, *slots: int) -> None:
    admission = memory.admission
    assert isinstance(admission, Scripted)
    admission.next = list(slots)
    memory.add(x=torch.arange(1000, 1000 + len(slots)))
    admission.next = None


@dataclass
class Scorer:
    """Increments by slot; remembers which slots it was asked for, and counts."""

    increments: Tensor
    asked: list[Tensor] = field(default_factory=list)

    def __call__(self, slots: Tensor) -> Scores:
        self.asked.append(slots.clone())
        values = self.increments[slots]
        features = torch.stack([values.cos(), values.sin()], dim=1)
        return Scores(values, values.abs(), features)


@dataclass(frozen=True)
class Given:
    """Weights as the scorer gives them, and a mass; remembers the running scales it was told."""

    mass: float = 1.0
    needs_scores = True
    told: list[float | None] = field(default_factory=list)

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        self.told.append(running_scale)
        return Weighting(scores.increments, self.mass, (running_scale or 0.0) + 1.0)


def no_scores(slots: Tensor) -> Scores:
    raise AssertionError("the scorer must not be called")


def frequencies(replay: Replay, scorer: Scorer, size: int) -> Tensor:
    """How often each slot is drawn, from one large draw with replacement."""
    assert replay.replacement
    return replay.draw(MANY, scorer).indices.bincount(minlength=size) / MANY


def assert_drawn_by(weights: list[float], observed: Tensor) -> None:
    expected = torch.tensor(weights) / sum(weights)
    assert torch.equal(observed == 0, expected == 0)
    # Five standard deviations of a binomial share.
    assert bool(((observed - expected).abs() <= 5 * (expected / MANY).sqrt()).all())


# When it scores.


def scorings(replay: Replay, scorer: Scorer, draws: int) -> list[int]:
    """Which of the next draws scored."""
    result = []
    for number in range(draws):
        before = len(scorer.asked)
        replay.draw(2, scorer)
        result += [number] * (len(scorer.asked) - before)
    return result


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


# Pools.


def test_only_candidates_are_drawn_until_the_next_scoring() -> None:
    replay = Replay(filled(20), Given(), generator=generator(), every=5, pool=4)
    scorer = Scorer(torch.linspace(0.1, 1.0, 20))
    pools = []
    for number in range(30):
        drawn = set(replay.draw(3, scorer).indices.tolist())
        candidates = scorer.asked[-1].tolist()
        assert len(set(candidates)) == len(candidates) == 4
        assert drawn <= set(candidates)
        if number % 5 == 0:
            pools.append(tuple(sorted(candidates)))
    assert len(scorer.asked) == 6
    assert len(set(pools)) == 6


def test_candidates_keep_their_own_weights_whatever_their_order() -> None:
    weights = torch.arange(1.0, 11.0)
    replay = Replay(
        filled(10), Given(), generator=generator(3), every=100, pool=5, replacement=True
    )
    scorer = Scorer(weights)
    observed = frequencies(replay, scorer, 10)
    chosen = torch.zeros(10).index_fill(0, scorer.asked[0], 1.0)
    assert_drawn_by((weights * chosen).tolist(), observed)


def test_candidates_are_a_uniform_choice() -> None:
    replay = Replay(filled(5), Given(), generator=generator(), pool=2)
    scorer = Scorer(torch.ones(5))
    scorings(replay, scorer, 4000)
    share = torch.cat(scorer.asked).bincount(minlength=5) / 4000
    assert share.tolist() == pytest.approx([0.4] * 5, abs=0.04)


@pytest.mark.parametrize("pool", [6, 7, 1000])
def test_a_pool_of_everything_is_the_memory_itself(pool: int) -> None:
    draws = []
    for size in (None, pool):
        replay = Replay(filled(6), Given(), generator=generator(), pool=size)
        scorer = Scorer(torch.arange(1.0, 7.0))
        draws.append([replay.draw(3, scorer).indices.tolist() for _ in range(5)])
        assert all(slots.tolist() == list(range(6)) for slots in scorer.asked)
    assert draws[0] == draws[1]


def test_a_pool_that_the_memory_outgrows_keeps_its_candidates_until_the_next_scoring() -> None:
    memory = filled(4)
    replay = Replay(memory, Given(), generator=generator(), every=4, pool=6, replacement=True)
    scorer = Scorer(torch.full((9,), 0.25))
    assert_drawn_by([1.0] * 4, frequencies(replay, scorer, 4))
    memory.add(x=torch.arange(2))
    assert_drawn_by([1.0] * 6, frequencies(replay, scorer, 6))
    memory.add(x=torch.arange(3))
    assert_drawn_by([1.0] * 4 + [0.0] * 5, frequencies(replay, scorer, 9))
    replay.start_task()
    replay.draw(1, scorer)
    assert len(scorer.asked[-1]) == 6


# Versions.


@pytest.mark.parametrize("mass", [1.0, 0.5])
def test_an_overwritten_slot_has_the_uniform_weight_until_it_is_scored(mass: float) -> None:
    memory = filled(5)
    weights = [0.0, 0.3 * mass, 0.6 * mass, 0.1 * mass, 0.0]
    scorer = Scorer(torch.tensor(weights))
    replay = Replay(memory, Given(mass), generator=generator(), every=3, replacement=True)
    assert_drawn_by(weights, frequencies(replay, scorer, 5))
    overwrite(memory, 2, 4)
    stale = [0.0, 0.3 * mass, mass / 5, 0.1 * mass, mass / 5]
    assert_drawn_by(stale, frequencies(replay, scorer, 5))
    overwrite(memory, 2)
    assert_drawn_by(stale, frequencies(replay, scorer, 5))
    assert len(scorer.asked) == 1
    assert_drawn_by(weights, frequencies(replay, scorer, 5))
    assert len(scorer.asked) == 2


@pytest.mark.parametrize("mass", [1.0, 0.5])
def test_new_slots_have_the_uniform_weight_until_they_are_scored(mass: float) -> None:
    memory = filled(4)
    replay = Replay(memory, Given(mass), generator=generator(), every=2, replacement=True)
    first = Scorer(torch.tensor([0.7, 0.0, 0.3, 0.0]) * mass)
    replay.draw(1, first)
    memory.add(x=torch.arange(2))
    new = [0.7 * mass, 0.0, 0.3 * mass, 0.0, mass / 4, mass / 4]
    assert_drawn_by(new, frequencies(replay, first, 6))
    second = Scorer(torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.0]) * mass)
    assert frequencies(replay, second, 6).tolist() == [0, 0, 0, 0, 1, 0]


def test_an_overwritten_candidate_of_a_pool_has_the_uniform_weight_of_the_pool() -> None:
    memory = filled(10)
    replay = Replay(memory, Given(), generator=generator(1), every=9, pool=4, replacement=True)
    scorer = Scorer(torch.full((10,), 0.25))
    scorer.increments[::2] = 0.0
    replay.draw(1, scorer)
    candidates = scorer.asked[0].tolist()
    overwrite(memory, *range(10))
    expected = [0.25 if slot in candidates else 0.0 for slot in range(10)]
    assert_drawn_by(expected, frequencies(replay, scorer, 10))


def test_updating_a_field_does_not_make_a_slot_stale() -> None:
    memory = filled(3)
    weights = [0.8, 0.0, 0.2]
    scorer = Scorer(torch.tensor(weights))
    replay = Replay(memory, Given(), generator=generator(), every=9, replacement=True)
    replay.draw(1, scorer)
    memory.update(torch.arange(3), x=torch.full((3,), 7))
    assert_drawn_by(weights, frequencies(replay, scorer, 3))


# Strength.


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


# Reproducibility.

OPTIONS: list[dict[str, Any]] = [
    {},
    {"every": 3},
    {"every": 3, "pool": 5},
    {"every": 2, "pool": 5, "replacement": True, "unit_mass": True},
]


def history(replay: Replay, memory: Memory, steps: range) -> list[Any]:
    """Draws of some steps, with a memory that changes in between."""
    table = torch.sin(torch.arange(64.0)) + 0.2
    result = []
    for step in steps:
        if step == 6:
            replay.start_task()
        scorer = Scorer(table.roll(step) * (1 + step))
        draw = replay.draw(4, scorer)
        asked = [slots.tolist() for slots in scorer.asked]
        result.append((draw.indices.tolist(), draw.scale, draw["x"].tolist(), asked))
        memory.add(x=torch.tensor([step, -step]))
    return result


def fresh(seed: int, options: Mapping[str, Any]) -> tuple[Replay, Memory]:
    memory = Memory(12, generator=generator(1))
    memory.add(x=torch.arange(9))
    selection = SphereSelection(Sphere.vision(2, 4))
    return Replay(memory, selection, generator=generator(seed), **options), memory


@pytest.mark.parametrize("options", OPTIONS)
def test_equal_seeds_draw_alike_and_others_differ(options: dict[str, Any]) -> None:
    first, again, other = (history(*fresh(seed, options), range(12)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("options", OPTIONS)
def test_a_saved_controller_continues_bit_for_bit_from_any_step(options: dict[str, Any]) -> None:
    whole = history(*fresh(3, options), range(12))
    for stop in range(13):
        replay, memory = fresh(3, options)
        assert history(replay, memory, range(stop)) == whole[:stop]
        tree = {"replay": replay.state_dict(), "memory": memory.state_dict()}
        tensors, skeleton = flatten(tree)
        state = unflatten(from_bytes(to_bytes(tensors)), json.loads(json.dumps(skeleton)))
        # A generator in another place: everything must come from the state.
        replay, memory = fresh(99, options)
        replay.load_state_dict(state["replay"])
        memory.load_state_dict(state["memory"])
        assert history(replay, memory, range(stop, 12)) == whole[stop:]


def test_a_snapshot_does_not_change_when_the_controller_goes_on() -> None:
    replay, memory = fresh(3, {"every": 3, "pool": 5})
    history(replay, memory, range(4))
    state, saved = replay.state_dict(), memory.state_dict()
    expected = history(replay, memory, range(4, 12))
    replay.load_state_dict(state)
    memory.load_state_dict(saved)
    assert history(replay, memory, range(4, 12)) == expected
