"""ABS admission: reservoir odds, and victims by loss that differ for past and present."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from sphere_replay.memory import AsymmetricBalanced, Insight, Memory
from sphere_replay.memory.asymmetric_balanced import victim
from tensors import seeded

LOSSES = torch.tensor([0.0, 1.0, 3.0, 2.0, 6.0, 4.0], dtype=torch.float64)
PAST = torch.tensor([True, True, True, False, False, False])


def frequencies(losses: Tensor, past: Tensor) -> list[float]:
    """Of every slot as the victim, over evenly spread numbers."""
    uniforms = (torch.arange(6000) + 0.5) / 6000
    counts = Counter(victim(losses, past, float(uniform)) for uniform in uniforms)
    return [counts[slot] / 6000 for slot in range(len(losses))]


def test_current_memories_go_by_their_loss_and_past_ones_by_its_complement() -> None:
    # Past: 1 - (0, 1/3, 1) = 1, 2/3, 0 of 5/3. Current: 0, 1, 1/2 of 3/2. Half the slots each.
    expected = [0.3, 0.2, 0.0, 0.0, 1 / 3, 1 / 6]
    assert frequencies(LOSSES, PAST) == pytest.approx(expected, abs=0.001)


def test_groups_lose_in_proportion_to_their_slots() -> None:
    past = torch.tensor([True, False, False, False, False, False])
    assert frequencies(LOSSES, past)[0] == pytest.approx(1 / 6, abs=0.001)
    assert sum(frequencies(LOSSES, ~PAST & PAST)) == pytest.approx(1)
    assert frequencies(LOSSES, PAST | ~PAST)[4] == 0  # the hardest of the past


def test_equal_losses_make_equal_victims() -> None:
    assert frequencies(torch.ones(6).double(), PAST) == pytest.approx([1 / 6] * 6, abs=0.001)


def filled(policy: AsymmetricBalanced, capacity: int, losses: Tensor, seed: int) -> Memory:
    memory = Memory(capacity, policy, generator=seeded(seed))
    for start in range(0, len(losses), 7):
        rows = torch.arange(start, min(start + 7, len(losses)))
        memory.add(position=rows, y=torch.zeros_like(rows), loss=losses[rows])
    return memory


def test_a_current_task_keeps_what_has_a_low_loss() -> None:
    """The n-th row gets in with probability K / n, whatever its loss."""
    losses = torch.rand(120, generator=seeded(1))
    stored, entered = [], 0
    for seed in range(150):
        memory = filled(AsymmetricBalanced(), 10, losses, seed)
        assert memory["loss"].tolist() == losses[memory["position"]].tolist()
        stored.append(float(memory["loss"].mean()))
        memory.add(position=torch.tensor([999]), y=torch.tensor([0]), loss=torch.tensor([9.0]))
        entered += 999 in memory["position"].tolist()
    assert sum(stored) / 150 < float(losses.mean()) - 0.1
    assert entered / 150 == pytest.approx(10 / 121, abs=0.07)


def test_a_refreshed_loss_decides() -> None:
    """Slot 3 is given the only high loss, and is the only victim there can be."""
    memory = Memory(5, AsymmetricBalanced(), generator=seeded())
    rows = torch.arange(5)
    memory.add(position=rows, y=rows * 0, loss=torch.ones(5))
    memory.update(torch.tensor([3]), loss=torch.tensor([2.0]))
    for position in range(5, 200):
        slot = int(
            memory.add(
                position=torch.tensor([position]),
                y=torch.tensor([0]),
                loss=torch.tensor([1.0]),
            )
        )
        if slot >= 0:
            assert slot == 3
            return
    raise AssertionError("no row got in")


def test_rows_of_one_batch_see_each_other() -> None:
    """Batches of any size leave the same memory behind."""
    losses, labels = torch.rand(2, 90, generator=seeded(2))
    labels = (4 * labels).long()
    memories = []
    for size in (1, 6, 90):
        memory = Memory(8, AsymmetricBalanced(), generator=seeded(3))
        for rows in torch.split(torch.arange(90), size):
            memory.add(Insight(first_class=2), y=labels[rows], loss=losses[rows])
        memories.append(memory)
    for memory in memories[1:]:
        assert torch.equal(memory.versions, memories[0].versions)
        assert torch.equal(memory["loss"], memories[0]["loss"])


def test_a_restored_policy_goes_on_alike() -> None:
    losses = torch.rand(60, generator=seeded(4))
    memory = filled(AsymmetricBalanced(), 8, losses, 5)
    other = Memory(8, AsymmetricBalanced(), generator=seeded(6))
    other.load_state_dict(memory.state_dict())
    for each in (memory, other):
        rows = {"position": torch.arange(60), "y": torch.ones(60).long(), "loss": losses.flip(0)}
        each.add(Insight(first_class=1), **rows)
    assert torch.equal(memory.versions, other.versions)


def test_a_missing_loss_is_named() -> None:
    memory = Memory(3, AsymmetricBalanced(), generator=seeded())
    with pytest.raises(ValueError, match=r"loss of every row in a field 'loss'.*host"):
        memory.add(y=torch.tensor([0]))
