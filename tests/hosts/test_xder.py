"""X-DER: a step by hand, the draws of a selection, odd input."""

import copy
import logging
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from hosts.workbench import (
    CLASSES,
    Net,
    bits,
    generator,
    listening,
    parts,
    same_bits,
    stream_batch,
)
from hosts.xder_parts import (
    SIZE,
    TASKS,
    at_task,
    batch_of,
    host_with,
    learn_task,
    without_statistics,
)
from sphere_replay.hosts import Batch, ExtendedDarkReplay
from sphere_replay.hosts.xder import ExtendedDarkOptions
from sphere_replay.replay import Draw

# A step, written out.


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
        losses.append(o.alpha * (dark_logits - dark["logits"]).square().sum() / (6 * CLASSES))
        losses.append(o.beta * F.cross_entropy(label_logits[:, :first], labelled["y"]))
        met = set()
        for draw, logits in ((dark, dark_logits), (labelled, label_logits)):
            for i, slot in enumerate(draw.indices.tolist()):
                if slot not in met:
                    rows.append((logits[i], int(draw["y"][i]) // SIZE))
                met.add(slot)
    if o.future_constraint and task + 1 < TASKS:
        excess = []
        for row, head in rows:
            own = row[SIZE * head : SIZE * head + SIZE].max()
            excess.append(row[first + SIZE :].max() + o.margin - own)
        violated = [value for value in excess if value > 0]
        losses += [o.eta * torch.stack(violated).mean()] if violated else []
    if o.past_constraint and task > 0:
        odds = stream[:, : first + SIZE].softmax(dim=1)
        gap = odds[:, :first].max(dim=1).values.detach() + o.margin
        gap = gap - odds[:, first:].max(dim=1).values
        losses += [o.eta * gap[gap > 0].mean()] if (gap > 0).any() else []
    if task + 1 < TASKS:
        images, labels = batch.images, batch.labels
        if draws:
            slots = torch.randperm(len(host.memory), generator=source)[:5]
            images = torch.cat([host.memory["x"][slots], images])
            labels = torch.cat([host.memory["y"][slots], labels])
        strong = views.strengthen(torch.cat([images, images]), source)
        logits = without_statistics(network, strong)
        losses.append(o.contrast * contrast_by_hand(logits[:, first + SIZE :], labels, 2))
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
    host = at_task(2, select="sphere")
    images, labels, gradients = host.memory["x"], host.memory["y"], []
    for parameter in host.network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator(5))
        gradients.append(parameter.grad.clone())

    def losses(lr: float) -> Tensor:
        network = copy.deepcopy(host.network).eval()
        with torch.no_grad():
            for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                parameter.sub_(lr * gradient)
            logits = network(host.parts.views.prepare(images))
        return F.cross_entropy(logits[:, :4], labels, reduction="none")

    found = host.score(torch.arange(len(labels))).increments
    assert host.parts.virtual_lr is not None
    torch.testing.assert_close(found, losses(host.parts.virtual_lr) - losses(0.0))


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
        ExtendedDarkOptions.of(options)


def test_heads_must_divide_the_classes() -> None:
    made = parts()
    made.tasks = 4
    with pytest.raises(ValueError, match="6 classes do not split into 4 tasks"):
        ExtendedDarkReplay(made)
