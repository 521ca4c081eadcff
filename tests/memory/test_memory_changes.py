"""Saving a memory by what changed: every link of the chain, or an error and nothing written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sphere_replay.memory import (
    Admission,
    ClassBalanced,
    GreedyBalanced,
    Memory,
    Reservoir,
    by_class,
)
from sphere_replay.storage.saved import load_tree, save_tree
from sphere_replay.storage.trees import State, flatten
from states import spelled
from tensors import seeded

POLICIES: list[Callable[[], Admission]] = [Reservoir, ClassBalanced, GreedyBalanced]
BY_CLASS: list[Callable[[], Admission]] = [ClassBalanced, GreedyBalanced]


def build(policy: Callable[[], Admission], seed: int = 0, capacity: int = 20) -> Memory:
    return Memory(capacity, policy(), generator=seeded(seed))


def offer(memory: Memory, first: int, last: int) -> None:
    rows = torch.arange(first, last)
    # A few classes first, and new ones as the stream goes on, so that classes lose slots.
    memory.add(x=rows[:, None] * torch.ones(3), y=rows * 7 % (2 + rows // 15))


def copied(memory: Memory, policy: Callable[[], Admission]) -> Memory:
    copy = build(policy, seed=99, capacity=memory.capacity)
    copy.load_state_dict(memory.state_dict())
    return copy


def refuse(memory: Memory, changes: State, message: str) -> None:
    before, written = spelled(memory.state_dict()), memory.mark
    with pytest.raises(ValueError, match=message):
        memory.apply_changes(changes)
    assert spelled(memory.state_dict()) == before
    assert memory.mark == written


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("saved_at", [0, 8, 60])
def test_a_chain_of_changes_from_files_is_bit_identical(
    policy: Callable[[], Admission], saved_at: int, tmp_path: Path
) -> None:
    memory = build(policy)
    if saved_at:
        offer(memory, 0, saved_at)
    copy = copied(memory, policy)
    for link, first in enumerate(range(saved_at, saved_at + 100, 10)):
        mark = memory.mark
        offer(memory, first, first + 3)
        memory.update(torch.tensor([0, 1, 0]), y=torch.tensor([first, 9, 5]))
        offer(memory, first + 3, first + 10)
        save_tree(tmp_path, f"changes-{link}", memory.changes(mark))
    for link in range(10):
        copy.apply_changes(load_tree(tmp_path, f"changes-{link}")[1])
    assert spelled(copy.state_dict()) == spelled(memory.state_dict())
    both = memory.mark, copy.mark
    for each in (memory, copy):
        offer(each, saved_at + 100, saved_at + 200)
    assert spelled(copy.state_dict()) == spelled(memory.state_dict())
    assert spelled(memory.changes(both[0])) == spelled(copy.changes(both[1]))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_missing_link_is_refused(policy: Callable[[], Admission]) -> None:
    memory = build(policy)
    offer(memory, 0, 30)
    copy, links = copied(memory, policy), []
    for slot in (3, 4):
        mark = memory.mark
        memory.update(torch.tensor([slot]), x=torch.full((1, 3), -1.0))
        links.append(memory.changes(mark))
    refuse(copy, links[1], r"30 rows seen and 1 edited, this one has 30 and 0: load what they")
    copy.apply_changes(links[0])
    refuse(copy, links[0], r"30 rows seen and 0 edited, this one has 30 and 1: load what they")
    copy.apply_changes(links[1])
    assert spelled(copy.state_dict()) == spelled(memory.state_dict())


@pytest.mark.parametrize("policy", POLICIES)
def test_damaged_changes_are_refused_before_anything_is_written(
    policy: Callable[[], Admission],
) -> None:
    memory = build(policy)
    offer(memory, 0, 8)
    used, mark = copied(memory, policy), memory.mark
    memory.update(torch.tensor([2]), x=torch.zeros(1, 3))
    offer(memory, 8, 20)
    good = memory.changes(mark)
    slots, versions, fields = good["slots"], good["versions"], good["fields"]
    assert slots[0] == 2
    assert good["filled"] == len(memory) > 10

    def rows(kept: Any) -> State:
        values = {name: field[kept] for name, field in fields.items()}
        return {"slots": slots[kept], "versions": versions[kept], "fields": values}

    def put(values: torch.Tensor, place: int, value: int) -> torch.Tensor:
        return values.index_fill(0, torch.tensor([place]), value)

    everyone = torch.arange(len(slots))
    for damage, message in [
        ({"slots": put(slots, 0, -1)}, "slot -1 is not among"),
        ({"slots": put(slots, -1, 10**6)}, "slot 1000000 is not among"),
        ({"slots": put(slots, 0, 8)}, "slots must ascend"),
        ({"slots": slots.flip(0)}, "slots must ascend"),
        ({"slots": slots.double()}, "slots must be int64"),
        ({"slots": slots[1:]}, r"slots and \d+ versions for \d+ rows"),
        (rows(everyone != 2), r"gaps in slots 8 to"),
        (rows(everyone[:-1]), r"gaps in slots 8 to"),
        ({"filled": 21}, "21 slots filled, after 8 of 20 were"),
        ({"filled": 7}, "7 slots filled, after 8 of 20 were"),
        ({"versions": put(versions, 2, -1)}, "slot 9 has version -1, which is neither"),
        ({"versions": put(versions, 0, 1)}, "slot 2 has version 1, which is neither"),
        ({"versions": put(versions, 2, 20)}, "slot 9 has version 20, .* of rows 8 to 19"),
        ({"seen": 7}, "end before they begin"),
        ({"edits": -1}, "end before they begin"),
        ({"fields": {"x": fields["x"]}}, "missing field 'y'"),
        ({"fields": fields | {"x": fields["x"].double()}}, "'x' are float32"),
        ({"fields": fields | {"x": fields["x"][1:]}}, "same number of rows"),
        ({"capacity": 10}, "capacity 10, this one 20"),
        ({"weights": 1}, "unknown entries weights"),
    ]:
        refuse(used, good | damage, message)
    for key in good:
        refuse(used, {name: good[name] for name in good if name != key}, f"changes lacks {key}: ")
    used.apply_changes(good)
    assert spelled(used.state_dict()) == spelled(memory.state_dict())


@pytest.mark.parametrize("policy", BY_CLASS)
def test_damaged_offers_are_refused_before_anything_is_written(
    policy: Callable[[], Admission],
) -> None:
    memory = build(policy)
    offer(memory, 0, 30)
    copy, mark = copied(memory, policy), memory.mark
    offer(memory, 30, 50)
    good = memory.changes(mark)
    labels, uniforms = good["offers"]["labels"], good["offers"]["uniforms"]
    for damage, message in [
        ({"labels": labels[1:]}, "damaged: 20 rows were offered"),
        ({"labels": labels.double()}, "damaged: 20 rows were offered"),
        ({"uniforms": uniforms[1:]}, "damaged: 20 rows were offered"),
        ({"uniforms": uniforms + 1}, "damaged: 20 rows were offered"),
        ({"uniforms": uniforms * torch.nan}, "damaged: 20 rows were offered"),
        ({"label": "task"}, "labels from field 'task', this one from 'y'"),
    ]:
        refuse(copy, good | {"offers": good["offers"] | damage}, message)
    refuse(copy, good | {"offers": {}}, "policy lacks label, labels, uniforms")
    refuse(copy, good | {"offers": None}, r"policy lacks .*held")
    plain = build(Reservoir)
    offer(plain, 0, 30)
    other, mark = copied(plain, Reservoir), plain.mark
    offer(plain, 30, 50)
    refuse(other, plain.changes(mark) | {"offers": good["offers"]}, "reservoir .* cannot repeat")


@pytest.mark.parametrize("policy", POLICIES)
def test_changes_of_a_batch_do_not_grow_with_the_memory(policy: Callable[[], Admission]) -> None:
    sizes = []
    for capacity in (200, 2000):
        memory = build(policy, capacity=capacity)
        memory.add(x=torch.zeros(capacity, 3), y=torch.zeros(capacity, dtype=torch.int64))
        mark = memory.mark
        memory.add(x=torch.ones(5, 3), y=torch.arange(1, 6))
        tensors, _ = flatten(memory.changes(mark))
        sizes.append(sum(values.numel() for values in tensors.values()))
    assert abs(sizes[0] - sizes[1]) <= 5 * 5  # slots that are hit twice


@pytest.mark.parametrize("policy", BY_CLASS)
def test_changes_since_long_ago_hold_the_whole_policy(
    policy: Callable[[], Admission], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_class, "_RECENT", 12)
    memory = build(policy)
    offer(memory, 0, 30)
    copy, middle, later = copied(memory, policy), copied(memory, policy), memory.mark
    start = middle.mark
    offer(memory, 30, 40)
    offer(memory, 40, 50)
    whole = memory.changes(later)
    assert whole["offers"] is None
    copy.apply_changes(whole)
    middle.apply_changes(whole)
    assert spelled(copy.state_dict()) == spelled(memory.state_dict())
    # What the policy was offered before is not known to a memory that took it as a whole.
    offer(middle, 50, 53)
    changes = middle.changes(start)
    assert changes["offers"] is None
    again = build(policy)
    offer(again, 0, 30)
    again.apply_changes(changes)
    assert spelled(again.state_dict()) == spelled(middle.state_dict())


def test_a_mark_ends_with_the_state_it_was_of() -> None:
    memory = build(ClassBalanced)
    offer(memory, 0, 12)
    early = memory.state_dict()
    offer(memory, 12, 30)
    mark = memory.mark
    memory.load_state_dict(early)
    offer(memory, 12, 50)
    with pytest.raises(ValueError, match=r"older than the state that was loaded.*take a new mark"):
        memory.changes(mark)
    with pytest.raises(ValueError, match=r"this mark is of another memory"):
        build(ClassBalanced).changes(memory.mark)
    with pytest.raises(TypeError, match="since is a `mark` of this memory, got 5"):
        memory.changes(5)  # type: ignore[arg-type]  # a mistake
