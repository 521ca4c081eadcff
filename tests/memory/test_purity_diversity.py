"""Purity-diversity admission: who leaves, in which order, and how often anybody is judged."""

import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sphere_replay.memory import Insight, Judgement, Memory, PurityDiversity
from sphere_replay.memory.purity_diversity import evictions, losing_classes
from states import spelled

DIMENSIONS, CLASSES = 5, 4


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand(judgement: Judgement, labels: list[int], losers: list[int]) -> list[int]:
    """The rule in loops: z-scores and mean cosines of those who are still there, every time."""
    head = judgement.head.tolist()
    features, losses = judgement.features.tolist(), judgement.losses.tolist()
    left = list(range(len(labels)))
    leaving = []
    for label in losers:
        members = [index for index in left if labels[index] == label]
        relevant = [
            d
            for d in range(len(head[0]))
            if head[label][d] > sum(row[d] for row in head) / len(head)
        ]

        def cosine(i: int, j: int, dims: list[int] = relevant) -> float:
            a, b = ([features[row][d] for d in dims] for row in (i, j))
            norms = math.hypot(*a) * math.hypot(*b)
            return sum(x * y for x, y in zip(a, b, strict=True)) / norms if norms else 0.0

        others = {i: sum(cosine(i, j) for j in members if j != i) for i in members}

        def z(values: Mapping[int, float]) -> dict[int, float]:
            mean = sum(values.values()) / len(values)
            spread = math.sqrt(sum((v - mean) ** 2 for v in values.values()) / len(values))
            return {i: (v - mean) / spread if spread > 1e-9 else 0.0 for i, v in values.items()}

        doubt, redundancy = z({i: losses[i] for i in members}), z(others)
        share = judgement.diversity
        score = {i: (1 - share) * doubt[i] + share * redundancy[i] for i in members}
        leaving.append(max(members, key=lambda i: score[i]))
        left.remove(leaving[-1])
    return leaving


def random_judgement(count: int, seed: int, diversity: float) -> Judgement:
    source = generator(seed)
    return Judgement(
        torch.rand(count, generator=source),
        torch.rand(count, DIMENSIONS, generator=source),
        torch.randn(CLASSES, DIMENSIONS, generator=source),
        diversity,
    )


@given(
    st.lists(st.integers(0, CLASSES - 1), min_size=4, max_size=24),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    st.data(),
)
def test_evictions_by_hand(
    labels: list[int], seed: int, diversity: float, data: st.DataObject
) -> None:
    judgement = random_judgement(len(labels), seed, diversity)
    count = data.draw(st.integers(1, len(labels) - 1))
    uniforms = torch.rand(count, generator=generator(seed), dtype=torch.float64)
    losers = losing_classes(torch.tensor(labels), uniforms)
    found = evictions(judgement, torch.tensor(labels), losers)
    assert found.tolist() == by_hand(judgement, labels, losers)


def judged(
    losses: list[float], features: list[list[float]], diversity: float, head: Tensor | None = None
) -> Judgement:
    if head is None:
        # Class 0 has more weight than class 1 everywhere: all dimensions matter to it.
        head = torch.stack([torch.ones(len(features[0])), torch.zeros(len(features[0]))])
    return Judgement(torch.tensor(losses), torch.tensor(features), head, diversity)


NEAR_DUPLICATES = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.01], [0.0, 0.0, 1.0]]


def test_of_two_near_duplicates_with_equal_losses_one_goes_first() -> None:
    judgement = judged([0.3, 0.3, 0.3, 0.3], NEAR_DUPLICATES, 0.5)
    first = evictions(judgement, torch.zeros(4).long(), [0]).tolist()
    assert first[0] in (1, 2)
    both = evictions(judgement, torch.zeros(4).long(), [0, 0]).tolist()
    assert set(both) != {1, 2}  # the one that is left resembles nobody any more


def test_without_diversity_losses_alone_decide_from_the_highest() -> None:
    judgement = judged([0.3, 0.1, 0.2, 0.9], NEAR_DUPLICATES, 0.0)
    assert evictions(judgement, torch.zeros(4).long(), [0, 0, 0]).tolist() == [3, 0, 2]


def test_with_diversity_alone_losses_do_not_matter() -> None:
    judgement = judged([9.0, 0.1, 0.2, 9.0], NEAR_DUPLICATES, 1.0)
    assert evictions(judgement, torch.zeros(4).long(), [0]).tolist()[0] in (1, 2)


def test_similarity_sees_only_dimensions_that_matter_to_the_class() -> None:
    """Rows 0 and 1 agree where class 0 has weight, rows 1 and 2 where class 1 has."""
    features = [[1.0, 0.0, 5.0, 0.0], [1.0, 0.0, 0.0, 5.0], [0.0, 1.0, 0.0, 5.0]]
    head = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    alike = judged([0.0, 1e-4, 0.0], features, 0.9, head)
    assert evictions(alike, torch.zeros(3).long(), [0]).tolist() == [1]
    assert evictions(alike, torch.zeros(3).long(), [0, 0]).tolist()[1] in (0, 2)
    mirrored = Judgement(alike.losses, alike.features, head, 1.0)
    gone = evictions(mirrored, torch.ones(3).long(), [1]).tolist()
    assert gone[0] in (1, 2)


@pytest.mark.parametrize("head", [torch.zeros(2, 3), torch.tensor([[-1.0] * 3, [1.0] * 3])])
def test_where_no_dimension_matters_or_all_agree_losses_decide(head: Tensor) -> None:
    judgement = judged([0.1, 0.4, 0.2, 0.3], NEAR_DUPLICATES, 0.5, head)
    assert evictions(judgement, torch.zeros(4).long(), [0, 0]).tolist() == [1, 3]


def test_equal_scores_leave_in_the_order_of_the_slots_and_never_as_nan() -> None:
    judgement = judged([0.3] * 3, [[0.0, 0.0]] * 3, 0.5)
    assert evictions(judgement, torch.zeros(3).long(), [0, 0]).tolist() == [0, 1]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=40), st.integers(0, 1000), st.data())
def test_the_largest_class_loses_each_time(
    labels: list[int], seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(labels)))
    uniforms = torch.rand(count, generator=generator(seed), dtype=torch.float64)
    sizes = {label: labels.count(label) for label in labels}
    for loser in losing_classes(torch.tensor(labels), uniforms):
        assert sizes[loser] == max(sizes.values())
        sizes[loser] -= 1


def test_ties_are_drawn() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    found = [losing_classes(labels, torch.tensor([u]))[0] for u in (0.1, 0.5, 0.9)]
    assert found == [0, 1, 2]


class Recorder:
    """A judge with an opinion on every example's number, who remembers what was asked."""

    def __init__(self, diversity: float = 0.0) -> None:
        self.diversity = diversity
        self.asked: list[list[float]] = []

    def __call__(self, candidates: Mapping[str, Tensor]) -> Judgement:
        numbers = candidates["x"]
        assert len(candidates["y"]) == len(numbers)
        self.asked.append(numbers.tolist())
        features = torch.stack([numbers.sin(), numbers.cos(), numbers / 100], dim=1)
        head = torch.randn(6, 3, generator=generator(0), dtype=torch.float64)
        return Judgement(loss_of(numbers), features, head, self.diversity)


def loss_of(numbers: Tensor) -> Tensor:
    return (numbers * 7.3).sin()


def filled(capacity: int, diversity: float = 0.0, seed: int = 1) -> tuple[Memory, Recorder]:
    return Memory(capacity, PurityDiversity(), generator=generator(seed)), Recorder(diversity)


def offer(memory: Memory, first: int, labels: list[int], judge: Recorder | None = None) -> Tensor:
    numbers = torch.arange(first, first + len(labels), dtype=torch.float64)
    return memory.add(Insight(judge=judge), x=numbers, y=torch.tensor(labels))


def test_while_there_is_room_everything_is_kept_and_nobody_judged() -> None:
    memory, judge = filled(10)
    assert offer(memory, 0, [0, 0, 0, 1], judge).tolist() == [0, 1, 2, 3]
    assert offer(memory, 4, [0] * 6, judge).tolist() == [4, 5, 6, 7, 8, 9]
    assert judge.asked == []


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(3, 12), st.sampled_from([0.0, 0.5]))
def test_classes_stay_balanced_and_slots_are_always_filled(
    seed: int, capacity: int, diversity: float
) -> None:
    memory, judge = filled(capacity, diversity, seed)
    source = generator(seed)
    offered: list[int] = []
    for batch in range(12):
        classes = (0, 1) if batch < 4 else (2, 3, 4)
        labels = [classes[i] for i in torch.randint(len(classes), (5,), generator=source).tolist()]
        before = len(judge.asked)
        held = memory["y"].tolist() if len(memory) else []
        slots = offer(memory, len(offered), labels, judge)
        offered += labels
        assert len(memory) == min(capacity, len(offered))
        assert len(judge.asked) - before == (len(offered) > capacity)
        kept = slots[slots >= 0].tolist()
        assert len(set(kept)) == len(kept)
        assert memory["x"][slots[slots >= 0]].tolist() == [
            float(len(offered) - 5 + row) for row in range(5) if slots[row] >= 0
        ]
        # The largest classes gave: nobody holds more than one above any that lost.
        now = [memory["y"].tolist().count(label) for label in range(6)]
        lost = [c for c in range(6) if now[c] < (held + labels).count(c)]
        assert all(max(now) <= now[c] + 1 for c in lost)
        assert [offered[int(number)] for number in memory["x"]] == memory["y"].tolist()
    counts = [memory["y"].tolist().count(label) for label in set(offered)]
    if all(offered.count(label) >= capacity for label in set(offered)):
        assert max(counts) - min(counts) <= 1


def test_without_diversity_the_purest_of_each_class_stay() -> None:
    memory, judge = filled(6)
    for first in range(0, 40, 4):
        offer(memory, first, [0, 1, 0, 1], judge)
    for label in (0, 1):
        everyone = torch.arange(label, 40, 2, dtype=torch.float64)
        best = everyone[loss_of(everyone).argsort()[:3]]
        assert set(memory["x"][memory["y"] == label].tolist()) == set(best.tolist())


def test_only_classes_that_lose_an_example_are_judged() -> None:
    memory, judge = filled(12)
    offer(memory, 0, [0] * 4 + [1] * 4 + [2] * 4, judge)
    offer(memory, 12, [2, 2], judge)
    assert len(judge.asked) == 1
    assert judge.asked[0] == [8.0, 9.0, 10.0, 11.0, 12.0, 13.0]


def test_more_classes_than_slots_leave_some_without_a_memory() -> None:
    memory, judge = filled(3)
    offer(memory, 0, [0, 1, 2, 3, 4], judge)
    assert len(set(memory["y"].tolist())) == len(memory) == 3


def test_a_batch_larger_than_the_memory() -> None:
    memory, judge = filled(4)
    slots = offer(memory, 0, [0, 1] * 10, judge)
    assert sorted(slots[slots >= 0].tolist()) == [0, 1, 2, 3]
    assert memory["y"].bincount().tolist() == [2, 2]
    assert len(judge.asked) == 1


def test_a_saved_memory_goes_on_alike() -> None:
    memory, judge = filled(6, 0.5)
    for first in range(0, 20, 4):
        offer(memory, first, [0, 1, 2, 1], judge)
    other, _ = filled(6, 0.5, seed=99)
    other.load_state_dict(memory.state_dict())
    for each in (memory, other):
        for first in range(20, 60, 4):
            offer(each, first, [3, 1, 0, 3], judge)
    assert torch.equal(memory["x"], other["x"])
    assert torch.equal(memory.versions, other.versions)


def test_nobody_to_judge_is_an_error_that_says_so() -> None:
    memory = Memory(3, PurityDiversity(), generator=generator(0))
    offer(memory, 0, [0, 1, 2])
    before = spelled(memory.state_dict())
    with pytest.raises(ValueError, match=r"nobody to judge.*puridiver"):
        offer(memory, 3, [0])
    assert spelled(memory.state_dict()) == before


def test_labels_are_checked() -> None:
    memory = Memory(3, PurityDiversity("label"), generator=generator(0))
    with pytest.raises(ValueError, match="reads labels from field 'label'"):
        memory.add(x=torch.zeros(2), y=torch.zeros(2).long())
    with pytest.raises(ValueError, match="integer labels"):
        memory.add(label=torch.zeros(2))
    memory.add(label=torch.zeros(2).long())
    other = Memory(3, PurityDiversity(), generator=generator(0))
    with pytest.raises(ValueError, match="label='label'"):
        other.load_state_dict(memory.state_dict())
