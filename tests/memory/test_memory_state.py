"""Saving a memory through safetensors and continuing as if nothing had happened."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sphere_replay.memory import Admission, ClassBalanced, GreedyBalanced, Memory, Reservoir
from tensors import seeded

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
    state, expected = memory.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    for key in expected:
        assert torch.equal(state[key], expected[key]), key


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("saved_at", [0, 11, 20, 150])
def test_continuing_from_a_file_is_bit_identical(
    policy: Callable[[], Admission], saved_at: int, tmp_path: Path
) -> None:
    straight = build(policy())
    offer(straight, 0, saved_at)
    save_file(straight.state_dict(), tmp_path / "memory.safetensors")
    resumed = build(policy(), seed=99)
    resumed.load_state_dict(load_file(tmp_path / "memory.safetensors"))
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
    late = memory.state_dict()
    memory.load_state_dict(early)
    assert (len(memory), memory.seen, memory["x"].data_ptr()) == (12, 12, address)
    offer(memory, 12, 200)
    assert all(torch.equal(memory.state_dict()[key], late[key]) for key in late)


def test_a_state_is_a_snapshot_of_contiguous_tensors() -> None:
    memory = build(ClassBalanced())
    offer(memory, 0, 60)
    state = memory.state_dict()
    copies = {key: values.clone() for key, values in state.items()}
    offer(memory, 60, 120)
    assert all(values.is_contiguous() for values in state.values())
    assert all(torch.equal(state[key], copies[key]) for key in state)
    assert state["generator"].dtype == torch.uint8
    assert state["seen"].dtype == torch.int64
    assert state["field.x"].shape == (20, 3)


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
    before = other.state_dict()
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(memory.state_dict())
    after = other.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
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
    for key in state:
        rest = {name: values for name, values in state.items() if name != key}
        with pytest.raises(ValueError, match=r"lacks|has no generator"):
            build(policy()).load_state_dict(rest)
    with pytest.raises(ValueError, match="unknown entries weights"):
        build(policy()).load_state_dict(state | {"weights": torch.zeros(1)})
    with pytest.raises(ValueError, match="unknown entries temperature"):
        build(policy()).load_state_dict(state | {"admission.temperature": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"damaged: 3 versions for [0-9]+ rows in 20 slots"):
        build(policy()).load_state_dict(state | {"versions": torch.arange(3)})


@pytest.mark.parametrize("policy", [ClassBalanced, GreedyBalanced])
def test_the_saved_slots_of_a_class_hold_that_class(policy: Callable[[], Admission]) -> None:
    memory = build(policy())
    offer(memory, 0, 200)
    state = memory.state_dict()
    owners = state["admission.classes"].repeat_interleave(state["admission.counts"])
    assert torch.equal(memory["y"][state["admission.slots"]], owners)
    assert state["admission.slots"].sort().values.tolist() == list(range(len(memory)))
    assert sorted(state["admission.classes"].tolist()) == list(range(8))
