"""A controller that is saved continues where it was."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from replay.scripted import (
    Scorer,
    generator,
)
from sphere_replay import Sphere
from sphere_replay.memory import Memory
from sphere_replay.replay import (
    Economy,
    Engine,
    SphereSelection,
)
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


def test_a_snapshot_does_not_change_when_the_engine_goes_on() -> None:
    replay, memory = fresh(3, {"every": 3, "pool": 5})
    history(replay, memory, range(4))
    state, saved = replay.state_dict(), memory.state_dict()
    expected = history(replay, memory, range(4, 12))
    replay.load_state_dict(state)
    memory.load_state_dict(saved)
    assert history(replay, memory, range(4, 12)) == expected
