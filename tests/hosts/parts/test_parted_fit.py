"""The fit to the memory: its epochs by hand, how it resumes, when it goes plain."""

import copy
import json
import logging
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from hosts.workbench import CLASSES, bits, generator, parts, same_bits, stream_batch
from sphere_replay.hosts import Batch, PuriDivER
from sphere_replay.hosts.parts import mixture, parted_fit
from sphere_replay.hosts.parts.mixture import NoSplitError
from sphere_replay.hosts.parts.parted_fit import Partition
from sphere_replay.memory import Memory, PurityDiversity
from sphere_replay.randomness import branched
from sphere_replay.replay import MirTop
from sphere_replay.scoring import Scores
from sphere_replay.storage.trees import flatten, from_bytes, to_bytes, unflatten

RATES = [0.03, 0.03, 0.01515, 0.03]
"""Cycles of 1, 2, 4 epochs between 0.03 and 0.0003."""


def host_with(
    select: str = "uniform", *, capacity: int = 21, batches: int = 4, **options: float
) -> PuriDivER:
    memory = Memory(capacity, PurityDiversity(), generator=generator(1))
    given_options = {"epochs": 4, "warm_up": 1, "fit_batch": 5, "cutmix": 0.0, **options}
    host = PuriDivER(parts(select, memory=memory, options=given_options))
    host.start_task()
    for seed in range(batches):
        host.observe(stream_batch(seed))
    return host


def fixed(parts: Partition | None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Let the memory always have these parts; what they were asked for."""
    asked: list[tuple[Tensor, Tensor]] = []

    def answer(losses: Tensor, logits: Tensor) -> Partition:
        asked.append((losses, logits))
        if parts is None:
            raise NoSplitError("somebody said no")
        return parts

    monkeypatch.setattr(parted_fit, "partition", answer)
    return asked


TRUST = torch.linspace(0.95, 0.05, 21, dtype=torch.float64)
PARTS = Partition(torch.arange(0, 11), torch.arange(11, 15), torch.arange(15, 21), TRUST)


# Epochs by hand.


def fit_by_hand(
    host: PuriDivER, epochs: int, *, confident: bool, strong: bool
) -> dict[str, Tensor]:
    """Nesterov SGD on plain and parted batches, written out; batches of 5, 11 clean memories."""
    network = copy.deepcopy(host.network)
    source = generator().set_state(host.parts.augmentation.get_state())
    views, memory = host.parts.views, host.memory
    parameters = list(network.parameters())
    momenta = [torch.zeros_like(parameter) for parameter in parameters]

    def step(loss: Tensor, rate: float) -> None:
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, momentum, gradient in zip(parameters, momenta, gradients, strict=True):
                decayed = gradient + 1e-4 * parameter
                momentum.mul_(0.9).add_(decayed)
                parameter.sub_(rate * (decayed + 0.9 * momentum))

    def shuffled(rows: Tensor) -> Tensor:
        return rows[torch.randperm(len(rows), generator=source)]

    def one_epoch(epoch: int, rate: float) -> None:
        if epoch == 0:
            batches = list(torch.split(shuffled(torch.arange(21)), 5))
            batches[-2:] = [torch.cat(batches[-2:])]  # 21 = 5 + 5 + 5 + 6: none of one example
            for rows in batches:
                images = views.augment(memory["x"][rows], source)
                torch.rand((), generator=source)  # the coin for CutMix
                step(F.cross_entropy(network(images), memory["y"][rows]), rate)
            return
        relabelled, consistent = PARTS.incorrect, PARTS.ambiguous
        if confident:
            relabelled, consistent = consistent, relabelled
        order = shuffled(PARTS.clean)
        clean = [order[:5], order[5:]]  # 11 = 5 + 6
        others = []
        for part in (relabelled, consistent):
            size = max(2, len(part) * 5 // 11)
            assert size == 2
            assert 2 * size <= len(part)  # one round is enough
            order = shuffled(part)
            others.append([order[:size], order[size : 2 * size]])
        for rows, doubted, steady in zip(clean, *others, strict=True):
            images = views.augment(memory["x"][rows], source)
            torch.rand((), generator=source)
            doubtful = memory["x"][torch.cat([doubted, steady])]
            weak = views.augment(doubtful, source)
            moved = (
                views.strengthen(doubtful, source) if strong else views.augment(doubtful, source)
            )
            logits = network(torch.cat([images, weak, moved]))
            n = len(rows)
            mine, weak_d, weak_s, strong_d, strong_s = (
                logits[:n],
                logits[n : n + 2],
                logits[n + 2 : n + 4],
                logits[n + 4 : n + 6],
                logits[n + 6 :],
            )
            t = TRUST[doubted].float()[:, None]
            onehot = torch.eye(CLASSES)[memory["y"][doubted]]
            target = t * onehot + (1 - t) * weak_d.detach().softmax(1)
            new = -(target * strong_d.log_softmax(1)).sum(1).mean()
            same = (weak_s.softmax(1) - strong_s.softmax(1)).square().mean()
            old = F.cross_entropy(mine, memory["y"][rows])
            step((n * old + 2 * new + 2 * same) / (n + 4), rate)

    for epoch, rate in enumerate(RATES[:epochs]):
        with branched(source):
            one_epoch(epoch, rate)
    return bits(network)


@pytest.mark.parametrize("confident", [False, True])
@pytest.mark.parametrize("strong", [False, True])
def test_a_fit_by_hand(confident: bool, strong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain epoch, then parted ones: the routing, the schedule, the optimizer, the weights."""
    host = host_with(relabel_confident=float(confident), strong_views=float(strong))
    expected = fit_by_hand(host, 4, confident=confident, strong=strong)
    before = bits(host.network)
    asked = fixed(PARTS, monkeypatch)
    for step in range(host.fit_steps(last=False)):
        host.fit(step)
    fitted = bits(host.network)
    assert not same_bits(before, fitted)
    torch.testing.assert_close(fitted, expected, rtol=1e-3, atol=1e-5)
    assert len(asked) == 3


def test_parts_are_of_the_network_as_it_is_on_plain_views(monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_with()
    asked = fixed(PARTS, monkeypatch)
    host.fit(0)
    network = copy.deepcopy(host.network).eval()
    host.fit(1)
    with torch.no_grad():
        logits = network(host.parts.views.prepare(host.memory["x"]))
    torch.testing.assert_close(asked[0][1], logits)
    losses = F.cross_entropy(logits, host.memory["y"], reduction="none")
    torch.testing.assert_close(asked[0][0], losses)


def test_passes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_with(epochs=3)
    fixed(PARTS, monkeypatch)
    start = copy.copy(host.costs)
    for step in range(3):
        host.fit(step)
    # 21 in the plain epoch; then 21 looked at, 11 clean and two views of 2 + 2 in both batches.
    assert host.costs.backward - start.backward == 21 + 2 * (11 + 2 * 2 * 4)
    assert host.costs.scored - start.scored == 2 * 21
    assert host.costs.forward - start.forward == 21 + 2 * (11 + 2 * 2 * 4) + 2 * 21


def test_larger_parts_have_larger_batches_that_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 clean memories, 12 and 6 others: one step with all of them."""
    few = Partition(torch.arange(3), torch.arange(3, 9), torch.arange(9, 21), TRUST)
    host = host_with(epochs=1, warm_up=0)
    fixed(few, monkeypatch)
    start = copy.copy(host.costs)
    host.fit(0)
    assert host.costs.backward - start.backward == 3 + 2 * (12 + 6)
    many = Partition(torch.arange(15), torch.arange(15, 18), torch.arange(18, 21), TRUST)
    host = host_with(epochs=1, warm_up=0)
    fixed(many, monkeypatch)
    start = copy.copy(host.costs)
    host.fit(0)
    # Three steps of 5 clean and 2 + 2 others: 6 of each part's 3, so they go round.
    assert host.costs.backward - start.backward == 15 + 3 * 2 * (2 + 2)


def test_a_step_never_holds_more_than_sixteen_batches_of_a_part() -> None:
    few = Partition(torch.arange(3), torch.arange(3, 9), torch.arange(9, 109), TRUST)
    host = host_with(fit_batch=2)
    assert host._part_size(few.incorrect, few.clean) == 32
    assert host._part_size(few.ambiguous, few.clean) == 4


def test_what_follows_a_fit_sees_the_same_views_whatever_the_fit_drew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parts of two runs differ in size, and so do the numbers that their epochs take."""
    states = []
    for select, parts_ in (("uniform", PARTS), ("sphere", None)):
        host = host_with(select, select_stream=0)
        fixed(parts_, monkeypatch)
        for step in range(4):
            host.fit(step)
        states.append(host.parts.augmentation.get_state())
    assert torch.equal(*states)


# The selection in the fit.


def clean_draws(host: PuriDivER, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Which memories the next parted epoch takes as clean."""
    taken: list[Tensor] = []
    original = host._parted_loss

    def listen(clean: Tensor, *others: Tensor) -> Tensor:
        taken.append(clean)
        return original(clean, *others)

    monkeypatch.setattr(host, "_parted_loss", listen)
    host.fit(0)
    host.fit(1)
    return taken


def test_without_a_selection_each_clean_memory_is_taken_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixed(PARTS, monkeypatch)
    for host in (host_with(), host_with("sphere", select_fit=0)):
        taken = clean_draws(host, monkeypatch)
        assert sorted(torch.cat(taken).tolist()) == list(range(11))


def test_a_selection_draws_clean_memories_by_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed(PARTS, monkeypatch)
    host = host_with("sphere")
    scored: list[Tensor] = []
    original = host.score

    def listen(slots: Tensor) -> Scores:
        scored.append(slots)
        return original(slots)

    monkeypatch.setattr(host, "score", listen)
    taken = torch.cat(clean_draws(host, monkeypatch))
    assert [slots.tolist() for slots in scored] == [list(range(11))]  # the clean part alone
    assert len(taken) == 11
    assert set(taken.tolist()) <= set(range(11))
    # Only the largest increments, uniformly: a selection that leaves most memories out.
    host = host_with("mir-top")
    host._weigher.selection = MirTop(top=2)
    taken = torch.cat(clean_draws(host, monkeypatch))
    assert len(taken) == 11
    assert len(set(taken.tolist())) == 2


def test_the_virtual_step_of_the_fit_is_that_of_a_clean_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = host_with("sphere")
    fixed(PARTS, monkeypatch)
    host.fit(0)  # leaves gradients behind, which must not count
    reference = copy.deepcopy(host.network).train()
    source = generator().set_state(host.parts.augmentation.get_state())
    rows = PARTS.clean[torch.randperm(len(PARTS.clean), generator=source)][:5]
    logits = reference(host.parts.views.prepare(host.memory["x"][rows]))
    loss = F.cross_entropy(logits, host.memory["y"][rows])
    expected = torch.autograd.grad(loss, list(reference.parameters()))
    original = host.score

    def compare(slots: Tensor) -> Scores:
        for parameter, gradient in zip(host.network.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
        return original(slots)

    monkeypatch.setattr(host, "score", compare)
    host._clean_order(PARTS.clean)


def test_scoring_in_the_fit_leaves_statistics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_with("sphere")
    fixed(PARTS, monkeypatch)
    host.fit(0)
    before = bits(host.network)
    host._clean_order(PARTS.clean)
    assert same_bits(before, bits(host.network))
    assert host._weigher.state_dict()["running_scale"] is not None


# Resuming.


def reloaded(host: PuriDivER, select: str) -> PuriDivER:
    tensors, skeleton = flatten(host.state_dict())
    other = host_with(select, batches=0, epochs=6)
    other.parts.augmentation.manual_seed(987)
    state = unflatten(from_bytes(to_bytes(tensors)), json.loads(json.dumps(skeleton)))
    other.load_state_dict(state)
    return other


@pytest.mark.parametrize("select", ["uniform", "sphere"])
@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_a_fit_goes_on_with_the_same_bits(select: str, stop: int) -> None:
    whole = host_with(select, epochs=6)
    stopped = host_with(select, epochs=6)
    for step in range(6):
        done = whole.fit(step)
        if step == stop:
            stopped = reloaded(stopped, select)
        assert stopped.fit(step) == done
        assert same_bits(bits(whole.network), bits(stopped.network))
    for host in (whole, stopped):
        host.end_task(last=False)
        host.start_task()
        host.observe(stream_batch(7, classes=(3, 4)))
    assert same_bits(bits(whole.network), bits(stopped.network))
    assert whole.costs == stopped.costs


def test_a_fit_begins_at_its_beginning() -> None:
    with pytest.raises(ValueError, match="begins with step 0, not with 2"):
        host_with().fit(2)


def test_fits_follow_every_task_or_the_last_one() -> None:
    every, last = host_with(), host_with(fit_last_only=1)
    assert (every.fit_steps(last=False), every.fit_steps(last=True)) == (4, 4)
    assert (last.fit_steps(last=False), last.fit_steps(last=True)) == (0, 4)


# Bad input.


def test_without_parts_epochs_are_plain_and_the_reason_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host, plain = host_with(), host_with(warm_up=1000)
    fixed(None, monkeypatch)
    with caplog.at_level(logging.WARNING):
        for step in range(4):
            host.fit(step)
            plain.fit(step)
    assert same_bits(bits(host.network), bits(plain.network))
    reason = "an epoch of the memory fit was plain cross-entropy: somebody said no"
    assert [record.message for record in caplog.records] == [reason]
    assert (host.notes, plain.notes) == ({reason: 3}, {})


def test_a_mixture_that_has_not_converged_is_noted_and_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = host_with()
    fixed(replace(PARTS, converged=False), monkeypatch)
    for step in range(4):
        host.fit(step)
    assert host.notes == {mixture.UNFINISHED: 3}


def test_a_memory_with_too_few_clean_examples_is_fitted_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Three examples have no three parts; one example has not even statistics."""
    host = host_with(capacity=3)
    before = bits(host.network)
    for step in range(4):
        host.fit(step)
    host.end_task(last=True)
    assert "fewer than 3" in caplog.text
    assert not same_bits(before, bits(host.network))
    single = host_with(capacity=1)
    before = bits(single.network)
    assert [single.fit(step).loss for step in range(4)] == [0.0] * 4
    assert "nothing is fitted to a memory that holds 1" in caplog.text
    assert same_bits(before, bits(single.network))


def test_classes_without_a_memory_are_named(caplog: pytest.LogCaptureFixture) -> None:
    host = host_with(capacity=2, batches=0)
    images = torch.zeros(4, 1, 4, 4, dtype=torch.uint8)
    host.observe(Batch(images, torch.arange(4), torch.arange(4)))
    held = set(host.memory["y"].tolist())
    host.fit(0)
    absent = ", ".join(str(label) for label in range(4) if label not in held)
    assert f"cannot teach classes without a memory: {absent}" in caplog.text
    full = host_with()
    caplog.clear()
    full.fit(0)
    assert "cannot teach" not in caplog.text
