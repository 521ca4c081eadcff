"""Pools of candidates, and weights of slots that changed since they were scored."""

import pytest
import torch

from replay.scripted import (
    Given,
    Scorer,
    assert_drawn_by,
    filled,
    frequencies,
    generator,
    overwrite,
    scorings,
)
from sphere_replay.replay import (
    Engine,
)


@pytest.fixture(autouse=True, params=["small", "large"])
def _size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large memories keep their weights in an urn from draw to draw, and must not differ."""
    if request.param == "large":
        monkeypatch.setattr("sphere_replay.replay.engine.LARGE", 2)


def test_only_candidates_are_drawn_until_the_next_scoring() -> None:
    replay = Engine(filled(20), Given(), generator=generator(), every=5, pool=4)
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
    replay = Engine(
        filled(10), Given(), generator=generator(3), every=100, pool=5, replacement=True
    )
    scorer = Scorer(weights)
    observed = frequencies(replay, scorer, 10)
    chosen = torch.zeros(10).index_fill(0, scorer.asked[0], 1.0)
    assert_drawn_by((weights * chosen).tolist(), observed)


def test_candidates_are_a_uniform_choice() -> None:
    replay = Engine(filled(5), Given(), generator=generator(), pool=2)
    scorer = Scorer(torch.ones(5))
    scorings(replay, scorer, 4000)
    share = torch.cat(scorer.asked).bincount(minlength=5) / 4000
    assert share.tolist() == pytest.approx([0.4] * 5, abs=0.04)


@pytest.mark.parametrize("pool", [6, 7, 1000])
def test_a_pool_of_everything_is_the_memory_itself(pool: int) -> None:
    draws = []
    for size in (None, pool):
        replay = Engine(filled(6), Given(), generator=generator(), pool=size)
        scorer = Scorer(torch.arange(1.0, 7.0))
        draws.append([replay.draw(3, scorer).indices.tolist() for _ in range(5)])
        assert all(slots.tolist() == list(range(6)) for slots in scorer.asked)
    assert draws[0] == draws[1]


def test_a_pool_that_the_memory_outgrows_keeps_its_candidates_until_the_next_scoring() -> None:
    memory = filled(4)
    replay = Engine(memory, Given(), generator=generator(), every=4, pool=6, replacement=True)
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
    replay = Engine(memory, Given(mass), generator=generator(), every=3, replacement=True)
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
    replay = Engine(memory, Given(mass), generator=generator(), every=2, replacement=True)
    first = Scorer(torch.tensor([0.7, 0.0, 0.3, 0.0]) * mass)
    replay.draw(1, first)
    memory.add(x=torch.arange(2))
    new = [0.7 * mass, 0.0, 0.3 * mass, 0.0, mass / 4, mass / 4]
    assert_drawn_by(new, frequencies(replay, first, 6))
    second = Scorer(torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.0]) * mass)
    assert frequencies(replay, second, 6).tolist() == [0, 0, 0, 0, 1, 0]


def test_an_overwritten_candidate_of_a_pool_has_the_uniform_weight_of_the_pool() -> None:
    memory = filled(10)
    replay = Engine(memory, Given(), generator=generator(1), every=9, pool=4, replacement=True)
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
    replay = Engine(memory, Given(), generator=generator(), every=9, replacement=True)
    replay.draw(1, scorer)
    memory.update(torch.arange(3), x=torch.full((3,), 7))
    assert_drawn_by(weights, frequencies(replay, scorer, 3))
