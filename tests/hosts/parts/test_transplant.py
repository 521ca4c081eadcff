"""Transplanted logits: scaled below the label's own, and never turned around."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hosts.workbench import generator
from sphere_replay.hosts.parts.extended_dark import transplant

BLOCK = slice(2, 4)
LOGIT = st.floats(-8, 8, allow_nan=False, width=32)


def transplanted(own: float, block: list[float], gamma: float = 0.85) -> list[float]:
    """Label 0 with the stored logit `own`; the stored block is (7, 9)."""
    stored = torch.tensor([[own, 0.5, 7.0, 9.0]])
    fresh = torch.tensor([[-50.0, 60.0, *block]])
    result = transplant(stored, fresh, torch.tensor([0]), BLOCK, gamma)
    assert result[0, :2].tolist() == stored[0, :2].tolist()
    return result[0, 2:].tolist()


def test_the_known_cases() -> None:
    assert transplanted(2.0, [1.0, 4.0]) == pytest.approx([0.425, 1.7])
    assert transplanted(2.0, [1.0, 1.5]) == [1.0, 1.5]
    assert transplanted(-1.0, [0.5, -3.0]) == [7.0, 9.0]  # unguarded: (-0.85, 5.1)
    assert transplanted(-2.0, [-1.0, -3.0]) == [7.0, 9.0]
    assert transplanted(-2.0, [-2.5, -3.0]) == [-2.5, -3.0]
    assert transplanted(0.0, [0.0, 0.0]) == [0.0, 0.0]
    assert transplanted(0.0, [1.0, 0.0]) == [7.0, 9.0]


@given(own=LOGIT, first=LOGIT, second=LOGIT, gamma=st.floats(0.1, 1))
def test_no_sign_flips_and_the_label_stays_on_top(
    own: float, first: float, second: float, gamma: float
) -> None:
    result = transplanted(own, [first, second], gamma)
    if result == [7.0, 9.0]:
        return
    assert all(new * old >= 0 for new, old in zip(result, [first, second], strict=True))
    assert max(result) <= own + 1e-5 * abs(own)


def test_rows_are_independent_and_the_input_is_left_alone() -> None:
    source = generator()
    stored, fresh = torch.randn(2, 9, 6, generator=source)
    labels = torch.randint(6, (9,), generator=source)
    before = stored.clone()
    together = transplant(stored, fresh, labels, slice(0, 2), 0.85)
    alone = [transplant(stored[[i]], fresh[[i]], labels[[i]], slice(0, 2), 0.85) for i in range(9)]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(stored, before)
