"""The memory itself: storage, slots, versions, reading and editing."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sphere_replay.memory import ClassBalanced, Memory, Offer
from states import spelled
from tensors import random, seeded


class Scripted:
    """Places rows where the test says, without drawing."""

    name: ClassVar[str] = "scripted"
    draws: ClassVar[bool] = False

    def __init__(self, *batches: list[int]) -> None:
        self._batches = iter(batches)
        self.offers: list[Offer] = []

    def place(self, offer: Offer) -> Tensor:
        self.offers.append(offer)
        return torch.tensor(next(self._batches))

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        assert not state


def test_rows_are_read_back_with_their_fields_shapes_and_dtypes() -> None:
    images = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8, generator=seeded(1))
    labels = torch.arange(5)
    logits = torch.randn(5, 10, dtype=torch.float16, generator=seeded(2))
    memory = Memory(8, generator=seeded())
    slots = memory.add(x=images, y=labels, logits=logits)
    assert slots.tolist() == [0, 1, 2, 3, 4]
    assert memory.fields == ("x", "y", "logits")
    assert (len(memory), memory.seen, memory.capacity) == (5, 5, 8)
    assert memory["x"].dtype == torch.uint8
    assert memory["y"].shape == (5,)
    for name, values in {"x": images, "y": labels, "logits": logits}.items():
        assert memory[name].dtype == values.dtype
        assert torch.equal(memory[name], values)
    taken = memory.take(torch.tensor([4, 0, 4]))
    assert tuple(taken) == memory.fields
    assert torch.equal(taken["x"], images[[4, 0, 4]])
    assert taken["y"].tolist() == [4, 0, 4]


def test_field_order_of_a_later_add_does_not_matter() -> None:
    memory = Memory(4, generator=seeded())
    memory.add(x=torch.zeros(2, 3), y=torch.zeros(2))
    memory.add(y=torch.ones(2), x=torch.ones(2, 3))
    assert memory.fields == ("x", "y")
    assert memory["y"].tolist() == [0, 0, 1, 1]


def test_storage_is_allocated_once_and_read_without_copies() -> None:
    memory = Memory(10, generator=seeded())
    memory.add(x=random(3, 4), y=torch.arange(3))
    addresses = {name: memory[name].data_ptr() for name in memory.fields}
    for _ in range(20):
        memory.add(x=random(7, 4), y=torch.arange(7))
        assert {name: memory[name].data_ptr() for name in memory.fields} == addresses
    assert memory["x"].is_contiguous()
    view = memory["x"]
    memory.update(torch.tensor([2]), x=torch.full((1, 4), 7.0))
    assert view[2].tolist() == [7.0] * 4


def test_stored_rows_do_not_alias_the_callers_tensors() -> None:
    memory = Memory(4, generator=seeded())
    x = torch.ones(4, 2, requires_grad=True)
    memory.add(x=x)
    with torch.no_grad():
        x.fill_(-1)
    assert torch.equal(memory["x"], torch.ones(4, 2))
    assert not memory["x"].requires_grad
    fresh = torch.full((2, 2), 3.0)
    memory.update(torch.tensor([0, 1]), x=fresh)
    fresh.zero_()
    assert memory["x"][:2].tolist() == [[3.0, 3.0]] * 2
    taken = memory.take(torch.arange(4))["x"]
    taken.zero_()
    assert memory["x"].min() == 1.0


def test_storage_made_in_inference_mode_can_be_written_outside() -> None:
    memory = Memory(2, Scripted([0], [0]))
    with torch.inference_mode():
        memory.add(logits=torch.zeros(1, 3))
    memory.add(logits=torch.ones(1, 3))
    assert memory["logits"].tolist() == [[1.0] * 3]


def test_a_memory_made_in_inference_mode_can_be_used_outside() -> None:
    with torch.inference_mode():
        memory = Memory(5, generator=seeded())
        memory.add(x=torch.arange(5))
    memory.add(x=torch.arange(5, 9))
    assert len(memory) == 5


def test_the_default_device_does_not_leak_in() -> None:
    with torch.device("meta"):
        memory = Memory(4, generator=seeded())
        memory.add(y=torch.arange(9, device="cpu"))
        memory.update(torch.tensor([0], device="cpu"), y=torch.tensor([-1], device="cpu"))
        state = memory.state_dict()
    tensors = [state["versions"], state["generator"], *state["fields"].values()]
    assert all(values.device.type == "cpu" for values in tensors)
    assert int(memory["y"][0]) == -1


def test_the_last_row_of_a_batch_wins_its_slot() -> None:
    memory = Memory(3, Scripted([0, 1, 1, -1, 0, 2], [-1, 1, 1]))
    slots = memory.add(y=torch.arange(6))
    assert slots.tolist() == [-1, -1, 1, -1, 0, 2]
    assert memory["y"].tolist() == [4, 2, 5]
    assert memory.versions.tolist() == [4, 2, 5]
    assert memory.add(y=torch.arange(6, 9)).tolist() == [-1, -1, 1]
    assert memory["y"].tolist() == [4, 8, 5]
    assert memory.versions.tolist() == [4, 8, 5]


def test_an_offer_describes_the_batch_and_the_memory() -> None:
    policy = Scripted([0, -1], [1])
    memory = Memory(3, policy)
    memory.add(y=torch.arange(2))
    memory.add(y=torch.arange(1))
    first, second = policy.offers
    assert (first.count, first.seen, first.filled, first.capacity) == (2, 0, 0, 3)
    assert (second.count, second.seen, second.filled) == (1, 2, 1)
    assert first.uniforms.shape == (0,)


def test_a_policy_that_leaves_a_gap_is_an_error() -> None:
    memory = Memory(5, Scripted([0, 2]))
    with pytest.raises(RuntimeError, match=r"gap below slot 2.*from the lowest, here 0"):
        memory.add(y=torch.arange(2))


@given(
    capacity=st.integers(1, 8),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
def test_versions_change_exactly_where_examples_do(
    capacity: int, sizes: list[int], seed: int
) -> None:
    memory = Memory(capacity, generator=seeded(seed))
    history: list[set[int]] = [set() for _ in range(capacity)]
    position = 0
    for size in sizes:
        before = memory.versions
        stored = memory["y"].clone() if len(memory) else torch.empty(0, dtype=torch.int64)
        slots = memory.add(y=torch.arange(position, position + size))
        position += size
        assert slots.shape == (size,)
        after = memory.versions
        changed = {int(slot) for slot in slots if slot >= 0}
        for slot in range(len(memory)):
            if slot in changed:
                assert int(after[slot]) not in history[slot]
                history[slot].add(int(after[slot]))
            else:
                assert after[slot] == before[slot]
                assert memory["y"][slot] == stored[slot]
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                assert int(memory["y"][slot]) == position - size + row
    assert memory.seen == position
    assert len(memory) == min(position, capacity)


def test_versions_are_a_snapshot() -> None:
    memory = Memory(1, Scripted([0], [0]))
    memory.add(y=torch.tensor([1]))
    before = memory.versions
    memory.add(y=torch.tensor([1]))
    assert before.dtype == torch.int64
    assert before.tolist() != memory.versions.tolist()


def test_update_edits_rows_in_place_and_keeps_versions() -> None:
    memory = Memory(4, generator=seeded())
    memory.add(x=torch.zeros(4, 2), y=torch.arange(4))
    versions = memory.versions
    memory.update(torch.tensor([3, 1, 3]), x=torch.tensor([[1.0, 1], [2, 2], [3, 3]]))
    assert memory["x"].tolist() == [[0, 0], [2, 2], [0, 0], [3, 3]]
    assert memory["y"].tolist() == [0, 1, 2, 3]
    assert torch.equal(memory.versions, versions)
    memory.update(torch.empty(0, dtype=torch.int64), x=torch.empty(0, 2))
    assert memory["x"].tolist() == [[0, 0], [2, 2], [0, 0], [3, 3]]


def test_an_empty_batch_does_nothing() -> None:
    source = seeded()
    memory = Memory(4, generator=source)
    state = source.get_state()
    assert memory.add(x=torch.empty(0, 3), y=torch.empty(0)).shape == (0,)
    assert memory.fields == ()
    memory.add(x=torch.ones(6, 2))
    state, versions = source.get_state(), memory.versions
    assert memory.add(x=torch.empty(0, 2)).dtype == torch.int64
    assert torch.equal(source.get_state(), state)
    assert torch.equal(memory.versions, versions)
    assert (len(memory), memory.seen) == (4, 6)


def test_membership_and_repr_name_the_fields() -> None:
    memory = Memory(4, generator=seeded())
    assert "no fields yet" in repr(memory)
    memory.add(x=torch.ones(6, 2), y=torch.zeros(6, dtype=torch.int64))
    assert "y" in memory
    assert "logits" not in memory
    assert repr(memory) == "Memory(4/4 filled, 6 seen, reservoir, x: float32 [2], y: int64 [])"


def test_construction_errors() -> None:
    with pytest.raises(ValueError, match="capacity must be a whole number of at least 1, got 0"):
        Memory(0, generator=seeded())
    with pytest.raises(ValueError, match=r"whole number of at least 1, got 1\.5"):
        Memory(1.5, generator=seeded())  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match=r"a policy such as ClassBalanced\(\), got 'reservoir'"):
        Memory(3, "reservoir", generator=seeded())  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match=r"reservoir admission draws.*generator=torch\.Generator"):
        Memory(3)
    assert len(Memory(3, Scripted())) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": torch.zeros(2, 3)}, r"missing field 'y': this memory stores x, y"),
        (
            {"x": torch.zeros(2, 3), "y": torch.zeros(2).long(), "z": torch.zeros(2)},
            r"unknown field 'z'",
        ),
        (
            {"x": torch.zeros(2, 4), "y": torch.zeros(2).long()},
            r"'x' are float32 \[3\].*got float32 \[4\]",
        ),
        ({"x": torch.zeros(2, 3), "y": torch.zeros(2)}, r"'y' are int64 \[\].*got float32 \[\]"),
        ({"x": torch.zeros(2, 3), "y": torch.zeros(3).long()}, r"same number.*x: 2, y: 3"),
        ({"x": torch.zeros(2, 3), "y": torch.tensor(1)}, r"'y' must have shape \[n, ...\], got"),
        ({}, r"no field given"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_whole(
    fields: dict[str, Tensor], message: str
) -> None:
    source = seeded()
    memory = Memory(4, generator=source)
    memory.add(x=torch.ones(6, 3), y=torch.arange(6))
    before, state = spelled(memory.state_dict()), source.get_state()
    with pytest.raises(ValueError, match=message):
        memory.add(**fields)
    assert spelled(memory.state_dict()) == before
    assert torch.equal(source.get_state(), state)


def test_an_offer_that_its_policy_refuses_moves_no_later_draw() -> None:
    def kept(*, refused: bool) -> list[int]:
        memory = Memory(4, ClassBalanced(), generator=seeded())
        for start in range(0, 60, 6):
            if refused and start == 0:
                with pytest.raises(ValueError, match="labels"):
                    memory.add(x=torch.arange(6), y=torch.zeros(6, 2).long())
            memory.add(x=torch.arange(start, start + 6), y=torch.arange(6) % 2)
        return memory["x"].tolist()

    assert kept(refused=True) == kept(refused=False)


def test_reading_and_editing_errors() -> None:
    memory = Memory(4, generator=seeded())
    with pytest.raises(KeyError, match="none before the first add"):
        memory["x"]
    with pytest.raises(IndexError, match="slot 0 is not filled: none is"):
        memory.take(torch.tensor([0]))
    memory.add(x=torch.ones(3, 2))
    with pytest.raises(KeyError, match="no field 'y' in this memory; its fields: x"):
        memory["y"]
    with pytest.raises(IndexError, match="slot 3 is not filled: slots 0 to 2 are"):
        memory.take(torch.tensor([0, 3]))
    with pytest.raises(IndexError, match="slot -1"):
        memory.update(torch.tensor([-1]), x=torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"int64 of shape \[n\].*mask"):
        memory.take(torch.tensor([True, False, True]))
    with pytest.raises(ValueError, match="unknown field 'logits'"):
        memory.update(torch.tensor([0]), logits=torch.ones(1, 2))
    with pytest.raises(ValueError, match="2 slots but 1 rows"):
        memory.update(torch.tensor([0, 1]), x=torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"float32 \[2\].*got float64 \[2\]"):
        memory.update(torch.tensor([0]), x=torch.ones(1, 2).double())
    wrong: Any = {"x": [1]}
    with pytest.raises(TypeError, match=r"'x' must be a torch\.Tensor, got list"):
        memory.add(**wrong)
    assert torch.equal(memory["x"], torch.ones(3, 2))
