"""A memory of rows of any length keeps what a plain memory would, and comes back from its state."""

from pathlib import Path

import pytest
import torch

from language import tiny
from sphere_replay.language import TokenMemory
from sphere_replay.memory import Memory
from sphere_replay.randomness import generator_for
from sphere_replay.storage.saved import load_tree, save_tree
from states import spelled


def filled(count: int, capacity: int = 8, seed: int = 0) -> TokenMemory:
    memory = TokenMemory(capacity, generator=generator_for(seed, "admission"))
    memory.add(tiny.rows(count, encoder_decoder=False), [i // 5 for i in range(count)])
    return memory


def test_rows_stand_where_a_plain_memory_puts_their_numbers() -> None:
    rows = tiny.rows(40, encoder_decoder=True)
    plain = Memory(8, generator=generator_for(0, "admission"))
    memory = TokenMemory(8, generator=generator_for(0, "admission"))
    for start in range(0, 40, 7):
        part = rows[start : start + 7]
        numbers = torch.arange(start, start + len(part))
        assert torch.equal(memory.add(part, numbers), plain.add(x=numbers))
    held = plain["x"].tolist()
    assert torch.equal(memory.slots.versions, plain.versions)
    assert memory.tasks.tolist() == held
    for slot, row in enumerate(memory.rows(torch.arange(8))):
        assert all(torch.equal(row[name], rows[held[slot]][name]) for name in row)


def test_lengths_are_those_of_the_longest_field() -> None:
    memory = TokenMemory(4, generator=generator_for(0, "admission"))
    memory.add([{"input_ids": torch.arange(3), "labels": torch.arange(5)}], [0])
    assert memory.lengths(torch.tensor([0, 0])).tolist() == [5, 5]
    assert len(memory) == 1
    assert memory.capacity == 4


def test_answers_are_numbered_by_task_and_target_tokens() -> None:
    memory = TokenMemory(6, generator=generator_for(0, "admission"))
    targets = [[5], [-100, 5], [6], [5], [5, 6], [6]]
    rows = [
        {"input_ids": torch.tensor([1, 2]), "labels": torch.tensor(target)} for target in targets
    ]
    memory.add(rows, [0, 0, 0, 1, 0, 0])
    found = memory.answers(torch.arange(6))
    alike = memory.answers(torch.tensor([5, 2]))
    assert found is not None
    assert alike is not None
    assert (found.tolist(), alike.tolist()) == ([0, 0, 1, 2, 3, 1], [0, 0])


def test_free_text_has_no_answers_to_share() -> None:
    memory = TokenMemory(100, generator=generator_for(0, "admission"))
    tokens = [*range(60), *[7] * 40]
    rows = [{"input_ids": torch.tensor([1]), "labels": torch.tensor([token])} for token in tokens]
    memory.add(rows, [0] * 100)
    assert memory.answers(torch.arange(100)) is None
    assert memory.answers(torch.arange(40, 100)) is not None  # too few to tell


def test_a_task_of_many_labels_is_no_free_text() -> None:
    memory = TokenMemory(64, generator=generator_for(0, "admission"))
    tokens = [*range(44), *range(20)]  # as 64 examples of 77 labels are likely to be
    rows = [{"input_ids": torch.tensor([1]), "labels": torch.tensor([token])} for token in tokens]
    memory.add(rows, [0] * 64)
    assert memory.answers(torch.arange(64)) is not None


def test_what_is_stored_is_a_copy() -> None:
    memory = TokenMemory(4, generator=generator_for(0, "admission"))
    batch = torch.zeros(1000, dtype=torch.int64)
    memory.add([{"labels": batch[:2]}], [0])
    batch.fill_(7)
    (row,) = memory.rows(torch.tensor([0]))
    assert row["labels"].tolist() == [0, 0]
    assert row["labels"].untyped_storage().nbytes() == 16


def test_a_memory_continues_from_its_state(tmp_path: Path) -> None:
    memory = filled(30)
    save_tree(tmp_path, "memory", memory.state_dict())
    again = TokenMemory(8, generator=generator_for(5, "admission"))
    again.load_state_dict(load_tree(tmp_path, "memory")[1])
    more = tiny.rows(30, encoder_decoder=False, seed=1)
    assert torch.equal(memory.add(more, [9] * 30), again.add(more, [9] * 30))
    state = memory.state_dict()
    assert spelled(state) == spelled(again.state_dict())
    parts = [values for field in state["rows"].values() for values in field.values()]
    assert len(parts) == 6
    assert all(values.is_contiguous() for values in parts)


def test_an_empty_memory_has_a_state_too() -> None:
    again = TokenMemory(8, generator=generator_for(1, "admission"))
    again.load_state_dict(TokenMemory(8, generator=generator_for(0, "admission")).state_dict())
    assert len(again) == 0
    assert again.tasks.tolist() == []
    more = tiny.rows(30, encoder_decoder=False)
    again.add(more, [i // 5 for i in range(30)])
    assert torch.equal(again.slots.versions, filled(30).slots.versions)


def test_states_that_do_not_fit_are_refused_before_anything_changes() -> None:
    memory, state = filled(5), filled(8).state_dict()
    before, rows = spelled(memory.state_dict()), state["rows"]
    values, lengths = (rows["labels"][part] for part in ("values", "lengths"))
    with pytest.raises(ValueError, match="capacity 8, this one 4"):
        filled(2, capacity=4).load_state_dict(state)
    cut = {"values": values[:-1], "lengths": lengths}
    with pytest.raises(ValueError, match="damaged: 8 lengths of labels"):
        memory.load_state_dict(state | {"rows": rows | {"labels": cut}})
    with pytest.raises(ValueError, match="labels of the saved token memory lacks lengths"):
        memory.load_state_dict(state | {"rows": rows | {"labels": {"values": values}}})
    with pytest.raises(ValueError, match="lacks rows, slots"):
        memory.load_state_dict({})
    with pytest.raises(ValueError, match="the saved token memory has unknown entries more"):
        memory.load_state_dict(state | {"more": 1})
    assert spelled(memory.state_dict()) == before


def test_rows_must_look_alike() -> None:
    memory = filled(3)
    seen = memory.slots.seen
    with pytest.raises(ValueError, match="row 0 has the fields labels; this memory stores"):
        memory.add([{"labels": torch.ones(1)}], [0])
    row = tiny.rows(1, encoder_decoder=False)[0]
    with pytest.raises(ValueError, match=r"labels of row 0 must be torch.int64 \[t\], got"):
        memory.add([row | {"labels": row["labels"].float()}], [0])
    with pytest.raises(ValueError, match="3 rows need one task each"):
        memory.add(tiny.rows(3, encoder_decoder=False), [1])
    assert memory.slots.seen == seen
