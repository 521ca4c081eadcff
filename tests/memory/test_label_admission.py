"""Policies that read labels: what they keep, step by step, and how balanced it is."""

from collections import Counter
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from sphere_replay.memory import Admission, ClassBalanced, GreedyBalanced, Memory
from sphere_replay.memory.class_slots import ClassSlots
from tensors import seeded

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=80)


def fill(policy: Admission, capacity: int, labels: Tensor, seed: int, batch: int = 9) -> Memory:
    memory = Memory(capacity, policy, generator=seeded(seed))
    for start in range(0, len(labels), batch):
        rows = torch.arange(start, min(start + batch, len(labels)))
        memory.add(position=rows, y=labels[rows])
    return memory


def counts(memory: Memory) -> Counter[int]:
    return Counter(memory["y"].tolist()) if len(memory) else Counter()


@given(labels=LABELS, capacity=st.integers(1, 12), seed=st.integers(0, 1000))
def test_greedy_follows_gdumbs_rule_at_every_row(
    labels: list[int], capacity: int, seed: int
) -> None:
    memory = Memory(capacity, GreedyBalanced(), generator=seeded(seed))
    for label in labels:
        before = counts(memory)
        full = len(memory) == capacity
        quota = capacity // len(before.keys() | {label})
        slot = int(memory.add(y=torch.tensor([label])))
        accepted = label not in before or before[label] < quota
        assert (slot >= 0) == accepted
        if accepted:
            lost = before + Counter([label]) - counts(memory)
            if full:
                (loser,) = lost.elements()
                assert before[loser] == max(before.values())
            else:
                assert not lost
        else:
            assert counts(memory) == before


def test_greedy_quotas_shrink_as_classes_arrive() -> None:
    memory = Memory(100, GreedyBalanced(), generator=seeded())
    for label, expected in enumerate([[100], [50, 50], [33, 33, 34], [25, 25, 25, 25]]):
        memory.add(y=torch.full((150,), label))
        assert sorted(counts(memory).values()) == expected


def test_greedy_refuses_rows_beyond_their_quota_while_there_is_room() -> None:
    memory = Memory(10, GreedyBalanced(), generator=seeded())
    slots = memory.add(y=torch.tensor([0, 1] + [1] * 9))
    assert slots.tolist() == [0, 1, 2, 3, 4, 5, -1, -1, -1, -1, -1]
    assert counts(memory) == {0: 1, 1: 5}


def test_greedy_with_more_classes_than_slots_still_takes_new_ones() -> None:
    memory = Memory(3, GreedyBalanced(), generator=seeded())
    for label in range(20):
        assert int(memory.add(y=torch.tensor([label]))) >= 0
        assert max(counts(memory).values()) == (1 if label >= 2 else counts(memory)[label])
    assert len(memory) == 3
    assert 19 in counts(memory)


@given(labels=LABELS, capacity=st.integers(5, 15), seed=st.integers(0, 1000))
def test_class_balanced_invariants_hold_at_every_row(
    labels: list[int], capacity: int, seed: int
) -> None:
    memory = Memory(capacity, ClassBalanced(), generator=seeded(seed))
    offered: Counter[int] = Counter()
    full: set[int] = set()
    for position, label in enumerate(labels):
        before = counts(memory)
        filled = len(memory) == capacity
        slot = int(memory.add(position=torch.tensor([position]), y=torch.tensor([label])))
        offered[label] += 1
        after = counts(memory)
        if not filled:
            assert slot == position
        elif label in full:
            assert after == before
        else:
            (loser,) = (before + Counter([label]) - after).elements()
            assert before[loser] == max(before.values())
            assert after[label] == before[label] + 1
        if len(memory) == capacity:
            most = max(after.values())
            full |= {c for c in after if after[c] == most}
            assert all(after[c] in (most - 1, most) for c in full)
            assert all(after[c] == offered[c] for c in offered.keys() - full)


def test_class_balanced_keeps_small_classes_whole() -> None:
    labels = torch.tensor([0] * 500 + [1] * 40 + [2] * 5 + [3] * 3)
    labels = labels[torch.randperm(len(labels), generator=seeded(1))]
    memory = fill(ClassBalanced(), 60, labels, seed=2)
    assert counts(memory) == {0: 26, 1: 26, 2: 5, 3: 3}


def test_class_balanced_samples_uniformly_within_each_class() -> None:
    """Even when classes take turns, so that full ones shrink while their rows keep coming."""
    labels = torch.tensor([0] * 12 + [1, 0] * 10 + [2, 0, 1] * 8)
    seeds, capacity = 1500, 12
    hits = torch.zeros(len(labels))
    for seed in range(seeds):
        hits[fill(ClassBalanced(), capacity, labels, seed)["position"]] += 1
    for label in range(3):
        rows = hits[labels == label]
        kept = float(rows.sum()) / seeds / len(rows)
        assert kept == pytest.approx(4 / len(rows), abs=0.02)
        statistic = float((rows - rows.mean()).square().sum() / rows.mean()) / (1 - kept)
        assert stats.chi2.sf(statistic * (len(rows) - 1) / len(rows), len(rows) - 1) > 1e-3


@pytest.mark.parametrize("policy", [ClassBalanced, GreedyBalanced])
def test_evictions_are_uniform_over_tied_classes(
    policy: type[ClassBalanced] | type[GreedyBalanced],
) -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    evicted = torch.zeros(6)
    for seed in range(1200):
        kept = fill(policy(), 6, labels, seed)["position"]
        (gone,) = set(range(6)) - set(kept.tolist())
        evicted[gone] += 1
    assert stats.chisquare(evicted.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("policy", [ClassBalanced, GreedyBalanced])
@pytest.mark.parametrize("batch", [1, 5, 64, 400])
def test_decisions_do_not_depend_on_batch_size(
    policy: type[ClassBalanced] | type[GreedyBalanced], batch: int
) -> None:
    labels = torch.randint(6, (400,), generator=seeded(3)).sort().values
    memory = fill(policy(), 30, labels, seed=4, batch=batch)
    other = fill(policy(), 30, labels, seed=4)
    assert torch.equal(memory["position"], other["position"])
    assert torch.equal(memory["y"], labels[memory["position"]])
    assert torch.equal(memory.versions, memory["position"])


def test_another_label_field_and_negative_labels() -> None:
    memory = Memory(4, ClassBalanced(label="task"), generator=seeded())
    memory.add(task=torch.tensor([-1] * 10 + [7] * 10, dtype=torch.int32))
    assert Counter(memory["task"].tolist()) == {-1: 2, 7: 2}


def test_relabelling_a_stored_row_does_not_confuse_the_policy() -> None:
    memory = Memory(4, GreedyBalanced(), generator=seeded())
    memory.add(y=torch.tensor([0, 0, 0, 0]))
    memory.update(torch.arange(4), y=torch.full((4,), 9))
    assert int(memory.add(y=torch.tensor([0]))) == -1
    assert int(memory.add(y=torch.tensor([9]))) >= 0


@pytest.mark.parametrize("policy", [ClassBalanced, GreedyBalanced])
def test_label_errors(policy: type[ClassBalanced] | type[GreedyBalanced]) -> None:
    with pytest.raises(ValueError, match=rf"{policy.name} admission draws at random"):
        Memory(4, policy())
    with pytest.raises(ValueError, match=r"labels from field 'y', but the offered fields are x"):
        Memory(4, policy(), generator=seeded()).add(x=torch.zeros(2))
    for labels in (torch.zeros(2), torch.zeros(2, 3).long()):
        memory = Memory(4, policy(), generator=seeded())
        with pytest.raises(ValueError, match=r"needs integer labels of shape \[n\] in field 'y'"):
            memory.add(y=labels)
        assert (len(memory), memory.seen, memory.fields) == (0, 0, ())
    shared = policy()
    Memory(4, shared, generator=seeded()).add(y=torch.zeros(2).long())
    with pytest.raises(ValueError, match="a policy object of its own"):
        Memory(4, shared, generator=seeded()).add(y=torch.zeros(2).long())


@given(labels=LABELS, capacity=st.integers(1, 12), draws=st.randoms(use_true_random=False))
def test_the_largest_classes_are_those_of_a_fresh_count(
    labels: list[int], capacity: int, draws: Random
) -> None:
    held = ClassSlots()
    for label in labels:
        held.fill(label) if len(held) < capacity else held.replace(label, draws.random())
        fresh = ClassSlots()
        fresh.load_state_dict(held.state_dict())
        assert held.largest() == fresh.largest()
