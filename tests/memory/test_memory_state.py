"""Saving a memory and continuing as if nothing had happened."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sphere_replay.memory import Admission, ClassBalanced, GreedyBalanced, Memory, Reservoir
from sphere_replay.storage.saved import load_tree, save_tree
from sphere_replay.storage.trees import flatten
from states import spelled
from tensors import random, seeded

POLICIES: list[Callable[[], Admission]] = [Reservoir, ClassBalanced, GreedyBalanced]


def build(policy: Admission, seed: int = 0, capacity: int = 20) -> Memory:
    return Memory(capacity, policy, generator=seeded(seed))


def stream(first: int, last: int) -> dict[str, Tensor]:
    position = torch.arange(first, last)
    return {
        "x": (position[:, None] * torch.arange(1, 4)).to(torch.uint8),
        "y": 7 * (position // 10) % 8,  # classes arrive in falling order, and come back
        "logits": position[:, None].expand(-1, 5).float(),
    }


def offer(memory: Memory, first: int, last: int, batch: int = 7) -> None:
    for start in range(first, last, batch):
        memory.add(**stream(start, min(start + batch, last)))


def assert_same(memory: Memory, other: Memory) -> None:
    assert spelled(memory.state_dict()) == spelled(other.state_dict())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("saved_at", [0, 11, 20, 150])
def test_continuing_from_a_file_is_bit_identical(
    policy: Callable[[], Admission], saved_at: int, tmp_path: Path
) -> None:
    straight = build(policy())
    offer(straight, 0, saved_at)
    save_tree(tmp_path, "memory", straight.state_dict())
    resumed = build(policy(), seed=99)
    resumed.load_state_dict(load_tree(tmp_path, "memory")[1])
    assert_same(resumed, straight)
    assert resumed.fields == straight.fields
    offer(straight, saved_at, 300)
    offer(resumed, saved_at, 300, batch=16)
    assert_same(resumed, straight)
    assert resumed.seen == 300
    assert torch.equal(resumed["x"], straight["x"])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_used_memory_can_be_rewound_in_place(policy: Callable[[], Admission]) -> None:
    memory = build(policy())
    offer(memory, 0, 12)
    early, address = memory.state_dict(), memory["x"].data_ptr()
    offer(memory, 12, 200)
    late = spelled(memory.state_dict())
    memory.load_state_dict(early)
    assert (len(memory), memory.seen, memory["x"].data_ptr()) == (12, 12, address)
    offer(memory, 12, 200)
    assert spelled(memory.state_dict()) == late


def test_a_state_is_a_snapshot_of_plain_values_and_contiguous_tensors() -> None:
    memory = build(ClassBalanced())
    offer(memory, 0, 60)
    state = memory.state_dict()
    copy = spelled(state)
    offer(memory, 60, 120)
    assert spelled(state) == copy
    tensors = [state["versions"], state["generator"], state["admission"]["held"]["slots"]]
    tensors += state["fields"].values()
    assert len(flatten(state)[0]) == len(tensors)
    assert all(values.is_contiguous() for values in tensors)
    assert state["generator"].dtype == torch.uint8
    assert state["versions"].dtype == torch.int64
    assert (state["capacity"], state["seen"]) == (20, 60)
    assert (state["admission"]["name"], state["admission"]["label"]) == ("class-balanced", "y")
    assert {name: values.shape for name, values in state["fields"].items()} == {
        "x": (20, 3),
        "y": (20,),
        "logits": (20, 5),
    }


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (build(Reservoir(), capacity=10), "capacity 20, this one 10"),
        (build(GreedyBalanced()), "class-balanced admission, this one greedy-balanced"),
        (build(ClassBalanced(label="task")), "labels from field 'y', this one from 'task'"),
    ],
)
def test_loading_into_another_kind_of_memory_names_the_difference(
    other: Memory, message: str
) -> None:
    memory = build(ClassBalanced())
    offer(memory, 0, 30)
    before = spelled(other.state_dict())
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(memory.state_dict())
    assert spelled(other.state_dict()) == before
    assert other.fields == ()


def test_loading_other_fields_names_them() -> None:
    memory = build(Reservoir())
    memory.add(x=torch.zeros(3, 2), y=torch.zeros(3))
    other = build(Reservoir())
    other.add(x=torch.zeros(3, 2), z=torch.zeros(3))
    with pytest.raises(ValueError, match=r"unknown field 'y', missing field 'z'"):
        other.load_state_dict(memory.state_dict())
    other = build(Reservoir())
    other.add(x=torch.zeros(3, 4), y=torch.zeros(3))
    with pytest.raises(ValueError, match=r"'x' are float32 \[4\].*got float32 \[2\]"):
        other.load_state_dict(memory.state_dict())


@pytest.mark.parametrize("policy", POLICIES)
def test_incomplete_or_foreign_states_are_refused(policy: Callable[[], Admission]) -> None:
    memory = build(policy())
    offer(memory, 0, 30)
    state = memory.state_dict()
    admission, fields = state["admission"], state["fields"]
    used = build(policy())
    offer(used, 0, 12)

    def refuse(changed: dict[str, Any], message: str) -> None:
        for other in (build(policy()), used):
            before = spelled(other.state_dict())
            with pytest.raises(ValueError, match=message):
                other.load_state_dict(changed)
            assert spelled(other.state_dict()) == before

    for key in state.keys() - {"edits"}:  # old states lack them
        refuse({name: state[name] for name in state if name != key}, f"memory lacks {key}: was it")
    for key in admission.keys() - {"name"}:
        rest = {name: admission[name] for name in admission if name != key}
        refuse(state | {"admission": rest}, f"policy lacks {key}: was it")
    unnamed = {key: admission[key] for key in admission if key != "name"}
    refuse(state | {"admission": unnamed}, f"has no admission, this one {policy().name}")
    refuse(state | {"generator": None}, "has no generator, this one differs")
    refuse(state | {"weights": torch.zeros(1)}, "memory has unknown entries weights")
    refuse(state | {"admission": admission | {"temperature": 1.0}}, "unknown entries temperature")
    refuse(state | {"versions": torch.arange(3)}, "damaged: 3 versions for [0-9]+ rows in 20 slots")
    cut = {name: values[:-1] for name, values in fields.items()}
    refuse(state | {"fields": cut}, r"damaged: [0-9]+ versions for [0-9]+ rows in 20 slots")
    refuse(state | {"fields": fields | {"y": fields["y"][:-1]}}, "same number of rows")


@pytest.mark.parametrize("policy", [ClassBalanced, GreedyBalanced])
def test_counts_that_do_not_match_the_slots_are_damage(policy: Callable[[], Admission]) -> None:
    memory = build(policy())
    offer(memory, 0, 30)
    state = memory.state_dict()
    held = state["admission"]["held"]
    before = spelled(memory.state_dict())
    for changed, message in [
        (held | {"counts": held["counts"] | {0: 50}}, r"damaged: 3 classes .* sum to [67]\d, "),
        (held | {"slots": held["slots"][:-1]}, r"damaged: 3 classes .* sum to \d+, \d+ slots"),
        ({"slots": held["slots"]}, "label-based policy lacks counts"),
    ]:
        with pytest.raises(ValueError, match=message):
            memory.load_state_dict(state | {"admission": state["admission"] | {"held": changed}})
        assert spelled(memory.state_dict()) == before


@pytest.mark.parametrize("policy", [ClassBalanced, GreedyBalanced])
def test_the_saved_slots_of_a_class_hold_that_class(policy: Callable[[], Admission]) -> None:
    memory = build(policy())
    offer(memory, 0, 200)
    held = memory.state_dict()["admission"]["held"]
    owners = [label for label, count in held["counts"].items() for _ in range(count)]
    assert memory["y"][held["slots"]].tolist() == owners
    assert held["slots"].sort().values.tolist() == list(range(len(memory)))
    assert sorted(held["counts"]) == list(range(8))


def test_states_saved_before_edits_were_counted_load() -> None:
    memory, other = build(ClassBalanced()), build(ClassBalanced(), seed=99)
    offer(memory, 0, 30)
    state = memory.state_dict()
    del state["edits"]
    other.load_state_dict(state)
    assert_same(other, memory)


def test_changes_of_a_batch_bring_a_copy_to_the_same_state() -> None:
    def grown(batches: int) -> Memory:
        memory = Memory(20, generator=seeded())
        for batch in range(batches):
            memory.add(x=random(6, 3, seed=batch), y=torch.full((6,), batch))
        return memory

    memory, copy = grown(4), grown(0)
    copy.load_state_dict(memory.state_dict())
    start = memory.mark
    memory.add(x=random(6, 3, seed=9), y=torch.full((6,), 9))
    memory.update(torch.tensor([2, 2]), y=torch.tensor([70, 71]))
    changes = memory.changes(start)
    assert 1 <= len(changes["slots"]) <= 7
    assert 2 in changes["slots"].tolist()
    copy.apply_changes(changes)
    assert spelled(copy.state_dict()) == spelled(memory.state_dict())
    later = copy.mark
    for both in (memory, copy):
        both.add(x=random(6, 3, seed=10), y=torch.full((6,), 10))
    assert spelled(copy.state_dict()) == spelled(memory.state_dict())
    assert len(copy.changes(copy.mark)["slots"]) == 0
    assert copy.changes(later)["after"] == {"seen": 30, "edits": 2}
    with pytest.raises(ValueError, match=r"with 24 rows seen and 0 edited, .* has 36 and 2: load"):
        copy.apply_changes(changes)


def test_changes_from_the_beginning_are_the_whole_memory() -> None:
    memory, empty = Memory(5, generator=seeded()), Memory(5, generator=seeded(1))
    start = memory.mark
    memory.add(x=random(9, 2))
    empty.apply_changes(memory.changes(start))
    assert spelled(empty.state_dict()) == spelled(memory.state_dict())


def test_writes_since_a_mark_are_found_in_any_part_of_a_memory() -> None:
    memory = Memory(1000, generator=seeded())
    memory.add(x=torch.zeros(700))
    start = memory.mark
    memory.update(torch.tensor([690, 5, 260]), x=torch.ones(3))
    assert memory.written(start).tolist() == [5, 260, 690]
    middle = memory.mark
    assert memory.written(middle).tolist() == []
    memory.add(x=torch.ones(200))
    assert memory.written(middle).tolist() == list(range(700, 900))
    memory.load_state_dict(memory.state_dict())
    assert memory.written(memory.mark).tolist() == []
    assert memory.written(middle).tolist() == list(range(900))
