"""A padded batch comes apart into the rows it was made of, whichever side was padded."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from language import tiny
from sphere_replay.language import Row, pad_rows, row_length, rows_of, target_count


def left_padded(rows: list[Row]) -> dict[str, Tensor]:
    flipped = [{name: values.flip(0) for name, values in row.items()} for row in rows]
    return {name: values.flip(1) for name, values in pad_rows(flipped, tiny.PAD).items()}


def same(one: list[Row], other: list[Row]) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


@given(count=st.integers(1, 6), seed=st.integers(0, 99), both=st.booleans(), left=st.booleans())
@settings(max_examples=40)
def test_rows_come_back_from_either_padding(count: int, seed: int, both: bool, left: bool) -> None:
    rows = tiny.rows(count, encoder_decoder=both, seed=seed)
    batch = left_padded(rows) if left else pad_rows(rows, tiny.PAD)
    assert same(rows_of(batch, encoder_decoder=both), rows)


def test_equal_widths_do_not_confuse_source_and_target() -> None:
    ids = torch.tensor([[5, 6, 7], [8, 9, 0]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    batch["labels"] = torch.tensor([[5, -100, -100], [4, 3, 2]])
    first, second = rows_of(batch, encoder_decoder=True)
    assert first["labels"].tolist() == [5]
    assert second["labels"].tolist() == [4, 3, 2]
    assert second["input_ids"].tolist() == [8, 9]


def test_padding_is_what_each_field_ignores() -> None:
    rows = [
        {"input_ids": torch.tensor([5, 6, 7]), "labels": torch.tensor([1])},
        {"input_ids": torch.tensor([8]), "labels": torch.tensor([2, 3])},
    ]
    for row in rows:
        row["attention_mask"] = torch.ones_like(row["input_ids"])
    batch = pad_rows(rows, 63)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 63, 63]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[1, -100], [2, 3]]
    with pytest.raises(ValueError, match="nothing to pad"):
        pad_rows([], 0)


def test_ignored_labels_inside_stay_and_other_fields_go() -> None:
    batch = {
        "input_ids": torch.tensor([[4, 5, 6, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0]]),
        "labels": torch.tensor([[4, -100, 6, -100]]),
        "position_ids": torch.arange(4)[None],
        "use_cache": False,
    }
    (row,) = rows_of(batch)
    assert sorted(row) == ["attention_mask", "input_ids", "labels"]
    assert row["labels"].tolist() == [4, -100, 6]
    assert row_length(row) == 3


def test_without_a_mask_nothing_is_padding() -> None:
    ids = torch.tensor([[4, 0, 0]])
    (row,) = rows_of({"input_ids": ids, "labels": ids})
    assert row["input_ids"].tolist() == [4, 0, 0]


def test_the_first_token_of_a_decoder_only_row_is_given() -> None:
    row = {"input_ids": torch.tensor([4, 5]), "labels": torch.tensor([4, -100])}
    assert target_count(row) == 0
    assert target_count(row, encoder_decoder=True) == 1


def test_batches_that_cannot_be_taken_apart_say_why() -> None:
    ids = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="needs input_ids and labels, got input_ids"):
        rows_of({"input_ids": ids})
    with pytest.raises(ValueError, match=r"labels must be a tensor \[n, t\], got \[2\]"):
        rows_of({"input_ids": ids, "labels": ids[:, 0]})
    with pytest.raises(ValueError, match=r"labels \[2, 2\] must match input_ids \[2, 3\]"):
        rows_of({"input_ids": ids, "labels": ids[:, :2]})
