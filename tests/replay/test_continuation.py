"""A controller that is saved continues where it was."""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from replay.scripted import (
    Scorer,
    generator,
)
from sphere_replay import Sphere
from sphere_replay.geometry import Grouping
from sphere_replay.memory import Memory
from sphere_replay.replay import (
    Economy,
    Engine,
    SphereSelection,
)
from sphere_replay.scoring import Scores
from sphere_replay.storage.trees import flatten, from_bytes, to_bytes, unflatten

OPTIONS: list[dict[str, Any]] = [
    {},
    {"every": 3},
    {"every": 3, "pool": 5},
    {"every": 2, "pool": 5, "replacement": True, "unit_mass": True},
    {"every": 1, "economy": Economy(landmarks=3, longest=2)},
    {"every": 2, "pool": 6, "economy": Economy(landmarks=2, longest=4)},
]


def history(replay: Engine, memory: Memory, steps: range) -> list[Any]:
    """Draws of some steps, with a memory that changes in between."""
    table = torch.sin(torch.arange(64.0)) + 0.2
    result = []
    for step in steps:
        if step == 6:
            replay.start_task()
        scorer = Scorer(table.roll(step) * (1 + step))
        draw = replay.draw(4, scorer)
        asked = [slots.tolist() for slots in [*scorer.asked, *scorer.glanced]]
        result.append((draw.indices.tolist(), draw.scale, draw["x"].tolist(), asked))
        memory.add(x=torch.tensor([step, -step]))
    return result


def fresh(seed: int, options: Mapping[str, Any]) -> tuple[Engine, Memory]:
    memory = Memory(12, generator=generator(1))
    memory.add(x=torch.arange(9))
    selection = SphereSelection(Sphere.vision(2, 4))
    return Engine(memory, selection, generator=generator(seed), **options), memory


@pytest.mark.parametrize("options", OPTIONS)
def test_equal_seeds_draw_alike_and_others_differ(options: dict[str, Any]) -> None:
    first, again, other = (history(*fresh(seed, options), range(12)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("large", [1 << 16, 2])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_saved_engine_continues_bit_for_bit_from_any_step(
    options: dict[str, Any], large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphere_replay.replay.engine.LARGE", large)
    whole = history(*fresh(3, options), range(12))
    for stop in range(13):
        replay, memory = fresh(3, options)
        assert history(replay, memory, range(stop)) == whole[:stop]
        tree = {"replay": replay.state_dict(), "memory": memory.state_dict()}
        tensors, skeleton = flatten(tree)
        state = unflatten(from_bytes(to_bytes(tensors)), json.loads(json.dumps(skeleton)))
        # A generator in another place: everything must come from the state.
        replay, memory = fresh(99, options)
        memory.load_state_dict(state["memory"])
        replay.load_state_dict(state["replay"])
        assert history(replay, memory, range(stop, 12)) == whole[stop:]


@pytest.mark.parametrize("large", [1 << 16, 2])
@pytest.mark.parametrize("options", OPTIONS)
def test_an_engine_continues_from_a_state_and_the_changes_of_every_step(
    options: dict[str, Any], large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sphere_replay.replay.engine.LARGE", large)
    whole = history(*fresh(3, options), range(12))
    replay, memory = fresh(3, options)
    again, copy = fresh(99, options)
    copy.load_state_dict(memory.state_dict())
    again.load_state_dict(replay.state_dict())
    few = 0
    for step in range(10):
        mark, moment = replay.mark, memory.mark
        assert history(replay, memory, range(step, step + 1)) == whole[step : step + 1]
        changes = replay.changes(mark)
        few += "counters" in changes
        copy.apply_changes(memory.changes(moment))
        again.apply_changes(changes)
    assert (few > 0) == (options.get("every") != 1 or "economy" in options)
    assert history(again, copy, range(10, 12)) == whole[10:]


def test_changes_must_follow_what_is_loaded() -> None:
    replay, memory = fresh(3, {"every": 3})
    begun = replay.state_dict()
    history(replay, memory, range(1))
    mark = replay.mark
    history(replay, memory, range(1, 2))
    changes = replay.changes(mark)
    other, _ = fresh(3, {"every": 3})
    other.load_state_dict(begun)
    with pytest.raises(ValueError, match="every set of changes, in order"):
        other.apply_changes(changes)
    replay.load_state_dict(begun)
    history(replay, memory, range(1))  # as many rescorings as at the mark, but others
    with pytest.raises(ValueError, match="older than the state that was loaded"):
        replay.changes(mark)
    with pytest.raises(TypeError, match="since is a `mark` of this replay, got 'now'"):
        replay.changes("now")  # type: ignore[arg-type]  # a mistake
    with pytest.raises(ValueError, match="no changes of a replay"):
        replay.apply_changes(memory.changes(memory.mark))


def test_cells_of_frozen_features_are_kept_and_a_saved_engine_continues_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sphere_replay.geometry.build.EXACT_UP_TO", 100)
    monkeypatch.setattr("sphere_replay.geometry.grouping.LEAST_MEMBERS", 16)
    features = torch.randn(500, 4, generator=generator(5))

    def begun(seed: int) -> tuple[Engine, Memory]:
        memory = Memory(320, generator=generator(1))
        memory.add(x=torch.arange(300))
        selection = SphereSelection(Sphere.vision())
        return Engine(memory, selection, generator=generator(seed), every=1), memory

    def steps(replay: Engine, memory: Memory, numbers: range) -> list[Any]:
        def frozen(slots: Tensor, *, increments: bool = True) -> Scores:
            known = memory.take(slots)["x"]
            return Scores(torch.sin(known * 7.0), torch.ones(len(known)), features[known])

        result = []
        for step in numbers:
            draw = replay.draw(4, frozen)
            assert replay.weighting is not None
            allocation = replay.weighting.allocation
            assert allocation is not None
            assert isinstance(allocation.grouping, Grouping)
            cells, _, moved = allocation.grouping
            weights = replay.weighting.weights
            result.append((draw.indices.tolist(), weights.tolist(), cells.tolist(), moved))
            memory.add(x=torch.arange(300 + 10 * step, 310 + 10 * step))
        return result

    whole = steps(*begun(3), range(8))
    moved = [found[-1] for found in whole]
    assert moved[0] == 0
    assert all(later > earlier for earlier, later in pairwise(moved))
    for stop in (1, 4):
        replay, memory = begun(3)
        steps(replay, memory, range(stop))
        tensors, skeleton = flatten({"replay": replay.state_dict(), "memory": memory.state_dict()})
        state = unflatten(from_bytes(to_bytes(tensors)), json.loads(json.dumps(skeleton)))
        replay, memory = begun(99)
        memory.load_state_dict(state["memory"])
        replay.load_state_dict(state["replay"])
        assert steps(replay, memory, range(stop, 8)) == whole[stop:]


def test_a_snapshot_does_not_change_when_the_engine_goes_on() -> None:
    replay, memory = fresh(3, {"every": 3, "pool": 5})
    history(replay, memory, range(4))
    state, saved = replay.state_dict(), memory.state_dict()
    expected = history(replay, memory, range(4, 12))
    replay.load_state_dict(state)
    memory.load_state_dict(saved)
    assert history(replay, memory, range(4, 12)) == expected
