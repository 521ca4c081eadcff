"""X-DER's memory: quotas, what is stored, logits that are transplanted and renewed."""

import copy
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from hosts.workbench import (
    Net,
    generator,
    parts,
)
from hosts.xder_parts import at_task, batch_of, host_with, without_statistics
from sphere_replay.hosts import Batch, ExtendedDarkReplay
from sphere_replay.hosts.parts.extended_dark import transplant
from sphere_replay.memory import GreedyBalanced, Memory


def quotas(capacity: int, classes: int, tasks: int, per_class: int) -> list[Counter[int]]:
    """What each class has in memory after every task of a stream of `per_class` examples each."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1, classes)

        def forward(self, images: Tensor) -> Tensor:
            return torch.as_tensor(self.head(images.flatten(1)))

    made = parts(memory=Memory(capacity, GreedyBalanced(), generator=generator(1)), shaken=0.0)
    made.options = {"contrast": 0, "future_constraint": 0}
    made.num_classes, made.tasks, made.network = classes, tasks, Flat()
    host, size = ExtendedDarkReplay(made), classes // tasks
    found: list[Counter[int]] = []
    for task in range(tasks):
        host.start_task()
        labels = torch.arange(size * task, size * (task + 1)).repeat(per_class)
        for part in torch.split(labels, 100):
            images = torch.zeros(len(part), 1, 1, 1, dtype=torch.uint8)
            host.observe(Batch(images, part, part))
            assert len(host.memory) == sum(found[-1].values() if found else [])
        host.end_task(last=task + 1 == tasks)
        found.append(Counter(host.memory["y"].tolist()))
    return found


def test_quotas_of_the_paper_on_cifar10() -> None:
    found = quotas(500, 10, 5, 400)
    assert found[0] == {0: 250, 1: 250}
    assert found[1] == dict.fromkeys(range(4), 125)
    assert sorted(found[2].values()) == [83] * 4 + [84] * 2
    assert found[4] == dict.fromkeys(range(10), 50)


def test_quotas_of_the_paper_on_cifar100() -> None:
    found = quotas(2000, 100, 10, 210)
    assert found[0] == dict.fromkeys(range(10), 200)
    assert found[9] == dict.fromkeys(range(100), 20)
    assert all(max(c.values()) - min(c.values()) <= 1 for c in found)


def test_a_memory_smaller_than_the_classes_keeps_one_of_some() -> None:
    found = quotas(5, 10, 5, 20)
    assert [sum(counts.values()) for counts in found] == [4, 5, 5, 5, 5]
    assert set(found[-1].values()) == {1}


def test_what_is_stored_is_a_uniform_sample_of_each_class() -> None:
    """Examples of the first batches are no likelier to stay than those of the last."""
    late = 0
    for seed in range(25):
        host = host_with({"contrast": 0, "future_constraint": 0}, capacity=6)
        assert host.memory.generator is not None
        host.memory.generator.manual_seed(seed)
        host.start_task()
        for number in range(10):
            batch = batch_of(0, number)
            host.observe(Batch(torch.full_like(batch.images, number), batch.labels, batch.labels))
        host.end_task(last=False)
        late += int((host.memory["x"][:, 0, 0, 0] >= 5).sum())
    assert late / (25 * 6) == pytest.approx(0.5, abs=0.12)


def test_new_memories_carry_logits_of_augmented_views_with_past_heads_scaled() -> None:
    host = at_task(1)
    for seed in range(30, 33):
        host.observe(batch_of(1, seed))
    reference, state = copy.deepcopy(host.network), host.parts.augmentation.get_state()
    assert isinstance(reference, Net)
    assert host._held is not None
    held = host._held.take(torch.arange(len(host._held)))
    buffers = {name: value.clone() for name, value in host.network.named_buffers()}
    host.end_task(last=False)
    source = generator().set_state(state)
    logits = without_statistics(reference, host.parts.views.augment(held["x"], source)).detach()
    expected = transplant(logits, logits, held["y"], slice(0, 2), 0.85)
    stored = {
        x.numpy().tobytes(): z
        for x, z in zip(*map(host.memory.__getitem__, ("x", "logits")), strict=True)
    }
    new = [image.numpy().tobytes() for image in held["x"]]
    assert sum(key in stored for key in new) == 12
    for key, row in zip(new, expected, strict=True):
        if key in stored:
            torch.testing.assert_close(stored[key], row, rtol=1e-4, atol=1e-5)
    for name, value in buffers.items():
        assert torch.equal(host.network.get_buffer(name), value)
    assert (host.memory["y"] < 2).sum() == 12


def test_older_memories_are_refreshed_from_the_present_head_on() -> None:
    """A network of constant answers: what is transplanted is known, and what is not stays."""
    host = at_task(2)
    host.observe(batch_of(2, 0))
    with torch.no_grad():
        host.network.get_parameter("head.weight").zero_()
        host.network.get_parameter("head.bias").copy_(torch.tensor([1.0, 2, 3, 4, 5, -6]))
    stored = host.memory["logits"].clone()
    stored[:, :4] = torch.tensor([2.0, 2.0, -1.0, 9.0])
    host.memory["logits"].copy_(stored)
    labels = host.memory["y"].clone()
    images = host.memory["x"].clone()
    host.end_task(last=True)
    blocks = {
        0: [0.85 * 2, -6 * 0.85 * 2 / 5],  # 5 > 2: scaled
        1: [0.85 * 2, -6 * 0.85 * 2 / 5],
        2: None,  # the label's own logit is negative: the block stays
        3: [5.0, -6.0],  # 5 <= 9: as it is
    }
    rows = {image.numpy().tobytes(): i for i, image in enumerate(images)}
    checked = set()
    for image, label, logits in zip(*(host.memory[n] for n in ("x", "y", "logits")), strict=True):
        if int(label) >= 4:
            continue
        old = stored[rows[image.numpy().tobytes()]]
        block = blocks[int(label)]
        assert logits[:4].tolist() == old[:4].tolist()
        assert logits[4:].tolist() == pytest.approx(old[4:].tolist() if block is None else block)
        checked.add(int(label))
    assert checked == set(labels[labels < 4].tolist()) == {0, 1, 2, 3}


def test_replayed_logits_are_renewed_less_and_less_often() -> None:
    host = at_task(1, options={"alpha": 0, "beta": 0}, capacity=6)
    changes: list[int] = []
    # Positive logits of the labels: no row is guarded.
    host.memory["logits"].scatter_(1, host.memory["y"][:, None], 3.0)
    first = host.memory["logits"].clone()
    for seed in range(30):
        before = host.memory["logits"].clone()
        host.observe(batch_of(1, seed))
        after = host.memory["logits"]
        assert torch.equal(after[:, :2], first[:, :2])  # past heads keep what they knew
        changes.append(int((before != after).any(dim=1).sum()))
    # Both draws hold all six memories, so each is offered once a step: odds 1, 1/2, 1/3, ...
    assert changes[0] == 6
    assert sum(changes) == pytest.approx(6 * sum(1 / n for n in range(1, 31)), rel=0.3)
    assert sum(changes[:10]) > sum(changes[-10:])
    assert host._updates[:6].tolist() == [30] * 6
    host.end_task(last=False)
    assert host._updates.tolist() == [0] * 6


def test_the_images_of_memory_change_at_task_ends_only() -> None:
    host = at_task(1)
    images, versions = host.memory["x"].clone(), host.memory.versions
    for seed in range(5):
        host.observe(batch_of(1, seed))
    assert torch.equal(host.memory["x"], images)
    assert torch.equal(host.memory.versions, versions)
    host.end_task(last=False)
    assert not torch.equal(host.memory.versions, versions)
