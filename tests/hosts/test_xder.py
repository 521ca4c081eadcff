"""X-DER: a step by hand, the draws of a selection, quotas, transplanted logits, odd input."""

import copy
import logging
from collections import Counter
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from hosts.parts import (
    CLASSES,
    Net,
    bits,
    generator,
    listening,
    parts,
    same_bits,
    stream_batch,
)
from sphere_replay.hosts import Batch, ExtendedDarkReplay
from sphere_replay.hosts.transplant import transplant
from sphere_replay.memory import GreedyBalanced, Memory
from sphere_replay.replay import Draw

TASKS, SIZE = 3, 2
FEW = {"contrast_batch": 5, "views": 2}


def host_with(
    options: Mapping[str, float] | None = None,
    select: str = "uniform",
    capacity: int = 24,
    every: int = 1,
) -> ExtendedDarkReplay:
    memory = Memory(capacity, GreedyBalanced(), generator=generator(1))
    made = parts(select, memory=memory, options=FEW | dict(options or {}), every=every)
    made.tasks = TASKS
    return ExtendedDarkReplay(made)


def batch_of(task: int, seed: int, size: int = 8) -> Batch:
    return stream_batch(seed, classes=(SIZE * task, SIZE * task + 1), size=size)


def learn_task(host: ExtendedDarkReplay, task: int, batches: int = 6) -> None:
    host.start_task()
    for seed in range(batches):
        host.observe(batch_of(task, 10 * task + seed))
    host.end_task(last=task + 1 == TASKS)


def at_task(task: int, **arguments: object) -> ExtendedDarkReplay:
    """A host that is about to see its first batch of a task."""
    host = host_with(**arguments)  # type: ignore[arg-type]  # passed on
    for earlier in range(task):
        learn_task(host, earlier)
    host.start_task()
    return host


# A step, written out.


def without_statistics(network: Net, views: Tensor) -> Tensor:
    """Logits by batch statistics, on a copy: nothing is learnt about the batch."""
    features = network.hidden(views.flatten(1))
    spread = features.var(dim=0, correction=0)
    unit = (features - features.mean(dim=0)) / (spread + network.norm.eps).sqrt()
    logits: Tensor = network.head(torch.relu(unit * network.norm.weight + network.norm.bias))
    return logits


def contrast_by_hand(future: Tensor, labels: Tensor, views: int) -> Tensor:
    """Mean over future heads and examples, temperature 5."""
    count = len(labels)
    total = torch.zeros(())
    heads = future.shape[1] // SIZE
    for head in range(heads):
        z = F.normalize(future[:, SIZE * head : SIZE * (head + 1)], dim=1)
        for a in range(views * count):
            others = [b for b in range(views * count) if b != a]
            positives = [b for b in others if labels[b % count] == labels[a % count]]
            scale = torch.stack([(z[a] * z[b]).sum() / 5 for b in others]).exp().sum().log()
            terms = [scale - (z[a] * z[b]).sum() / 5 for b in positives]
            total = total + torch.stack(terms).mean()
    return total / (views * count * heads)


def losses_by_hand(
    host: ExtendedDarkReplay, network: Net, batch: Batch, draws: list[Draw], source: torch.Generator
) -> list[Tensor]:
    o, task, first = host.options, host.task, SIZE * host.task
    views = host.parts.views
    stream_view = views.augment(batch.images, source)
    stream = without_statistics(network, stream_view) if draws else network(stream_view)
    losses = [F.cross_entropy(stream[:, first : first + SIZE], batch.labels - first)]
    rows = [(stream[i], task) for i in range(len(batch))]
    if draws:
        dark, labelled = draws
        joined = torch.cat([views.augment(dark["x"], source), stream_view[: 6 // task]])
        dark_logits = network(joined)[: len(dark)]
        label_logits = without_statistics(network, views.augment(labelled["x"], source))
        losses.append(o["alpha"] * (dark_logits - dark["logits"]).square().sum() / (6 * CLASSES))
        losses.append(o["beta"] * F.cross_entropy(label_logits[:, :first], labelled["y"]))
        met = set()
        for draw, logits in ((dark, dark_logits), (labelled, label_logits)):
            for i, slot in enumerate(draw.indices.tolist()):
                if slot not in met:
                    rows.append((logits[i], int(draw["y"][i]) // SIZE))
                met.add(slot)
    if o["future_constraint"] and task + 1 < TASKS:
        excess = []
        for row, head in rows:
            own = row[SIZE * head : SIZE * head + SIZE].max()
            excess.append(row[first + SIZE :].max() + o["margin"] - own)
        violated = [value for value in excess if value > 0]
        losses += [o["eta"] * torch.stack(violated).mean()] if violated else []
    if o["past_constraint"] and task > 0:
        odds = stream[:, : first + SIZE].softmax(dim=1)
        gap = odds[:, :first].max(dim=1).values.detach() + o["margin"]
        gap = gap - odds[:, first:].max(dim=1).values
        losses += [o["eta"] * gap[gap > 0].mean()] if (gap > 0).any() else []
    if task + 1 < TASKS:
        images, labels = batch.images, batch.labels
        if draws:
            slots = torch.randperm(len(host.memory), generator=source)[:5]
            images = torch.cat([host.memory["x"][slots], images])
            labels = torch.cat([host.memory["y"][slots], labels])
        strong = views.strengthen(torch.cat([images, images]), source)
        logits = without_statistics(network, strong)
        losses.append(o["contrast"] * contrast_by_hand(logits[:, first + SIZE :], labels, 2))
    return losses


@pytest.mark.parametrize("task", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"past_constraint": 1, "eta": 0.7, "contrast": 0.4}])
def test_a_step_by_hand(task: int, options: dict[str, float]) -> None:
    host = at_task(task, options=options, select="sphere")
    for seed in range(2):
        batch = batch_of(task, 100 + seed)
        reference = copy.deepcopy(host.network)
        assert isinstance(reference, Net)
        memory = copy.deepcopy(host.memory)
        source = generator().set_state(host.parts.augmentation.get_state())
        before = len(listening(host).draws)
        host.observe(batch)
        draws = listening(host).draws[before:]
        assert len(draws) == (2 if task else 0)
        after, host.memory = host.memory, memory
        total = torch.stack(losses_by_hand(host, reference, batch, draws, source)).sum()
        host.memory = after
        parameters = dict(reference.named_parameters())
        gradients = torch.autograd.grad(total, list(parameters.values()))
        for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
            found = host.network.get_parameter(name)
            expected = value.detach() - host.parts.lr * gradient
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        for name, buffer in reference.named_buffers():
            torch.testing.assert_close(host.network.get_buffer(name), buffer, rtol=1e-4, atol=1e-6)


def test_statistics_come_from_the_stream_first_and_then_from_the_mixed_batch() -> None:
    """One forward per step moves them; without alignment every one does."""
    for task, align, expected in ((0, 1, 1), (1, 1, 1), (2, 1, 1), (0, 0, 2), (1, 0, 4), (2, 0, 3)):
        host = at_task(task, options={"align_bn": align})
        before = int(host.network.get_buffer("norm.num_batches_tracked"))
        host.observe(batch_of(task, 0))
        assert int(host.network.get_buffer("norm.num_batches_tracked")) - before == expected


# Selections.


def test_a_virtual_step_follows_the_stream_loss_alone() -> None:
    host = at_task(1, select="sphere")
    batch = batch_of(1, 50)
    reference = copy.deepcopy(host.network)
    assert isinstance(reference, Net)
    source = generator().set_state(host.parts.augmentation.get_state())
    host.observe(batch)
    logits = without_statistics(reference, host.parts.views.augment(batch.images, source))
    loss = F.cross_entropy(logits[:, 2:4], batch.labels - 2)
    expected = torch.autograd.grad(loss, list(reference.parameters()))
    (found,) = listening(host).gradients
    for value, gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(value, gradient, rtol=1e-4, atol=1e-6)


def test_increments_are_those_of_the_past_heads() -> None:
    host = at_task(2)
    logits = torch.randn(9, CLASSES, generator=generator(5))
    labels = torch.arange(9) % 4
    expected = F.cross_entropy(logits[:, :4], labels, reduction="none")
    torch.testing.assert_close(host.scored_loss(logits, labels), expected)


def test_both_draws_follow_one_vector_of_probabilities_and_differ() -> None:
    host = at_task(1, select="sphere", every=100)
    first = len(listening(host).draws)
    differing = 0
    for seed in range(10):
        host.observe(batch_of(1, seed))
        dark, labelled = listening(host).draws[-2:]
        differing += not torch.equal(dark.indices, labelled.indices)
        assert len(dark) == len(labelled) == 6
    assert len(listening(host).draws) - first == 20
    assert len(listening(host).gradients) == 1  # one rescoring for all of them
    assert differing == 10


def test_the_selection_moves_neither_views_nor_the_contrastive_draw() -> None:
    """Whatever is drawn, the generator of views is at the same place, and so is admission's."""
    hosts = [host_with(select=select) for select in ("uniform", "sphere")]
    for task in range(TASKS):
        for host in hosts:
            learn_task(host, task)
        uniform, sphere = hosts
        states = [host.parts.augmentation.get_state() for host in hosts]
        assert torch.equal(*states)
        assert torch.equal(uniform.memory["x"], sphere.memory["x"])
        assert torch.equal(uniform.memory.versions, sphere.memory.versions)
    assert not same_bits(bits(uniform.network), bits(sphere.network))


def test_steps_report_label_replay_at_full_mass() -> None:
    host = at_task(1, select="sphere")
    step = host.observe(batch_of(1, 3))
    assert step.replay_loss is not None
    assert (step.mass, step.drawn) == (1.0, 12)
    dark, labelled = listening(host).draws[-2:]
    wrong = sum(int((draw["y"] != draw["true"]).sum()) for draw in (dark, labelled))
    assert step.drawn_mislabelled == wrong


# Memory.


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


# State, costs and odd input.


def test_a_state_from_the_middle_of_a_task_goes_on_alike() -> None:
    host = at_task(1, select="sphere", every=3)
    for seed in range(4):
        host.observe(batch_of(1, seed))
    other = host_with(select="sphere", every=3)
    other.load_state_dict(copy.deepcopy(host.state_dict()))
    for each in (host, other):
        for seed in range(4, 8):
            each.observe(batch_of(1, seed))
        each.end_task(last=False)
        learn_task(each, 2)
    assert same_bits(bits(host.network), bits(other.network))
    for name in ("x", "y", "logits"):
        assert torch.equal(host.memory[name], other.memory[name])


@pytest.mark.parametrize("violated", [False, True])
def test_passes_are_counted(violated: bool) -> None:
    host = at_task(1, options={"future_constraint": float(violated), "margin": 100.0})
    before = copy.copy(host.costs)
    host.observe(batch_of(1, 0))
    replay, contrast = 6 + 6 + 6, 2 * (5 + 8)  # 6 of the stream join the distillation
    assert host.costs.forward - before.forward == 8 + replay + contrast
    # A constraint goes through the stream's graph a second time.
    assert host.costs.backward - before.backward == 8 + replay + contrast + 8 * violated


def test_nothing_is_held_back_once_a_task_is_over() -> None:
    host = host_with()
    host.start_task()
    host.observe(batch_of(0, 0))
    assert host.state_dict()["held"] is not None
    host.end_task(last=False)
    assert host.state_dict()["held"] is None


@pytest.mark.parametrize("name", ["contrast", "future_constraint", "past_constraint", "alpha"])
def test_every_term_can_be_left_out_and_matters(name: str) -> None:
    found = []
    for value in (0, 1):
        host = at_task(1, options={"eta": 1.0, "margin": 2.0} | {name: value})
        host.observe(batch_of(1, 0))
        found.append(bits(host.network))
    assert not same_bits(*found)


def test_a_class_that_never_came_is_logged_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    host = host_with()
    with caplog.at_level(logging.WARNING):
        host.start_task()
        for seed in range(3):
            host.observe(stream_batch(seed, classes=(1,)))
        host.end_task(last=False)
    assert "task 0 had no example of class 0" in caplog.text
    assert set(host.memory["y"].tolist()) == {1}
    learn_task(host, 1)
    learn_task(host, 2)


def test_a_task_without_any_batch_leaves_the_memory_as_it_is() -> None:
    host = host_with()
    for _ in range(2):
        host.start_task()
        host.end_task(last=False)
    host.start_task()
    assert len(host.memory) == 0
    assert host.observe(batch_of(2, 0)).drawn == 0


def test_grey_images_are_mentioned_once(caplog: pytest.LogCaptureFixture) -> None:
    host = host_with()
    host.start_task()
    with caplog.at_level(logging.WARNING):
        for seed in range(3):
            host.observe(batch_of(0, seed))
    assert caplog.text.count("images without colors") == 1


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda host: host.observe(batch_of(0, 0)), "start_task"),
        (lambda host: (host.start_task(), host.observe(batch_of(1, 0))), "labels 2 to 3"),
        (lambda host: [host.start_task() for _ in range(4)], "heads for 3 tasks"),
    ],
)
def test_misuse_is_named(act: Callable[[ExtendedDarkReplay], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act(host_with())


@pytest.mark.parametrize(
    "options", [{"views": 0}, {"views": 1.5}, {"contrast_batch": 0}, {"temperature": 0}, {"n": 1}]
)
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"option.*{next(iter(options))}"):
        ExtendedDarkReplay.check_options(options)


def test_heads_must_divide_the_classes() -> None:
    made = parts()
    made.tasks = 4
    with pytest.raises(ValueError, match="6 classes do not split into 4 tasks"):
        ExtendedDarkReplay(made)
