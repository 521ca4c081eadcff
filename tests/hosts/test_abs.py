"""ABS: what it learns from the stream, what it offers its memory, and its fit."""

import copy
import logging

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
    weights,
)
from sphere_replay.errors import DivergenceError
from sphere_replay.hosts import AsymmetricBalancedReplay, AsymmetricReplay
from sphere_replay.hosts.abs import AsymmetricBalancedOptions
from sphere_replay.hosts.parts import mixmatch
from sphere_replay.memory import AsymmetricBalanced, Memory, Reservoir

SHORT = {"epochs": 4, "warm_up": 1, "fit_batch": 6}


def host_with(
    options: dict[str, float] | None = None,
    select: str = "uniform",
    *,
    capacity: int = 24,
    batches: int = 0,
    shaken: float = 0.3,
) -> AsymmetricBalancedReplay:
    memory = Memory(capacity, AsymmetricBalanced(), generator=generator(1))
    made = parts(select, memory=memory, options=SHORT | (options or {}), shaken=shaken)
    made.tasks = 3
    host = AsymmetricBalancedReplay(made)
    host.start_task()
    for seed in range(batches):
        host.observe(stream_batch(seed, classes=(0, 1), size=16))
    return host


def with_still_statistics(host: AsymmetricBalancedReplay) -> AsymmetricBalancedReplay:
    """Evaluations before and during a step then agree."""
    assert isinstance(host.network, Net)
    host.network.norm.momentum = 0.0
    return host


def fit(host: AsymmetricBalancedReplay, *, last: bool = False) -> list[float]:
    losses = [host.fit(step).loss for step in range(host.fit_steps(last=last))]
    host.end_task(last=last)
    return losses


# The stream.


def test_the_network_learns_as_with_er_ace() -> None:
    """With all rows offered to a reservoir, weights are those of ER-ACE, bit for bit."""
    hosts = []
    for kind, options in ((AsymmetricBalancedReplay, {"offered": 1.0}), (AsymmetricReplay, {})):
        memory = Memory(24, Reservoir(), generator=generator(1))
        host = kind(parts("sphere", memory=memory, options=options))
        for task in range(3):
            host.start_task()
            for seed in range(5):
                host.observe(stream_batch(5 * task + seed, classes=(2 * task, 2 * task + 1)))
        hosts.append(host)
    first, second = hosts
    assert same_bits(bits(first.network), bits(second.network))
    assert torch.equal(first.memory["x"], second.memory["x"])


def masked_losses(host: AsymmetricBalancedReplay, images: Tensor, labels: Tensor) -> Tensor:
    """Task 1: classes 2 and 3, of which 3 is the newest; columns 0 and 1 are masked."""
    logits = host.predict(images)[:, 2:]
    return F.cross_entropy(logits, labels - 2, reduction="none")


def test_the_easiest_quarter_of_a_batch_is_offered_with_its_loss_before_the_update() -> None:
    host = with_still_statistics(host_with(batches=2))
    host.start_task()
    host.observe(stream_batch(50, classes=(2, 3), size=16))
    for size, offered in ((16, 4), (8, 2), (2, 1)):
        batch = stream_batch(60 + size, classes=(2, 3), size=size)
        losses = masked_losses(host, batch.images, batch.labels).clone()
        before, seen = len(host.memory), host.memory.seen
        host.observe(batch)
        assert host.memory.seen - seen == len(host.memory) - before == offered
        easiest = losses.sort().values[:offered]
        stored = host.memory["loss"][before:]
        torch.testing.assert_close(stored.sort().values, easiest, rtol=1e-4, atol=1e-6)
        for image, label in zip(host.memory["x"][before:], host.memory["y"][before:], strict=True):
            matches = (batch.images == image).flatten(1).all(dim=1) & (batch.labels == label)
            assert matches.any()


def test_losses_of_what_is_replayed_are_brought_up_to_date() -> None:
    host = with_still_statistics(host_with(batches=5))
    host.memory["loss"].fill_(-1)
    logits = host.predict(host.memory["x"]).clone()
    expected = F.cross_entropy(logits, host.memory["y"], reduction="none")
    filled = len(host.memory)
    host.observe(stream_batch(70, classes=(0, 1)))
    drawn = listening(host).draws[-1].indices
    losses = host.memory["loss"][:filled]
    torch.testing.assert_close(losses[drawn], expected[drawn], rtol=1e-4, atol=1e-6)
    rest = torch.ones(filled, dtype=torch.bool)
    rest[drawn] = False
    assert (losses[rest] == -1).all()


def test_scoring_leaves_statistics_and_mode_alone() -> None:
    """Batch norms see the stream and the replayed batch, as in ER-ACE."""
    host = host_with(batches=3)
    before = int(host.network.get_buffer("norm.num_batches_tracked"))
    host.observe(stream_batch(71, classes=(0, 1)))
    assert int(host.network.get_buffer("norm.num_batches_tracked")) - before == 2
    assert host.network.training


def test_the_policy_knows_where_the_current_task_begins() -> None:
    host = host_with()
    firsts = [host.insight().first_class]
    for _ in range(2):
        host.start_task()
        firsts.append(host.insight().first_class)
    assert firsts == [0, 2, 4]


def test_a_memory_of_low_losses_is_purer_than_its_stream() -> None:
    """Brightness tells the classes apart; a third of the labels is wrong."""
    host = host_with({"offered": 0.25}, capacity=30, shaken=0.05)
    source = generator(5)
    for _ in range(60):
        true = torch.randint(2, (16,), generator=source)
        wrong = torch.rand(16, generator=source) < 1 / 3
        images = (60 + 120 * true)[:, None, None, None].expand(-1, 1, 4, 4)
        noise = torch.randint(40, (16, 1, 4, 4), generator=source)
        batch = stream_batch(0)
        labels = torch.where(wrong, 1 - true, true)
        host.observe(type(batch)((images + noise).to(torch.uint8), labels, true))
    assert float((host.memory["y"] == host.memory["true"]).double().mean()) > 0.8


# The fit.


def test_an_epoch_trusts_all_or_what_the_mixture_says() -> None:
    host = host_with(batches=5)
    trust = host._trust()
    together = torch.cat([trust.trusted, trust.doubtful]).sort().values
    assert torch.equal(together, torch.arange(len(host.memory)))
    logits = host.predict(host.memory["x"])
    losses = F.cross_entropy(logits, host.memory["y"], reduction="none")
    assert losses[trust.trusted].max() < losses[trust.doubtful].min()
    assert (trust.probability[trust.trusted] > 0.5).all()
    assert (trust.probability[trust.doubtful] <= 0.5).all()
    asked: list[str] = []
    host._trust = lambda: asked.append("mixture") or trust  # type: ignore[method-assign, func-returns-value]  # a spy
    fit(host)
    assert asked == ["mixture"] * 3  # one of four epochs warms up


def test_targets_of_doubtful_views_belong_to_their_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """All views of an image are alike here, so its target can be told from the view itself."""
    host = with_still_statistics(host_with({"guesses": 3}, batches=5, shaken=0.0))
    seen: list[tuple[Tensor, Tensor]] = []
    original = mixmatch.mixup

    def mixup(inputs: Tensor, targets: Tensor, source: torch.Generator) -> mixmatch.MixedBatch:
        seen.append((inputs, targets))
        return original(inputs, targets, source)

    monkeypatch.setattr(mixmatch, "mixup", mixup)
    trust = host._trust()
    host._mixmatch(trust.trusted, trust.doubtful, trust.probability)
    ((inputs, targets),) = seen
    known = len(trust.trusted)
    assert len(inputs) == known + 3 * len(trust.doubtful)
    host.network.eval()
    odds = host.network(inputs).softmax(dim=1).detach()
    host.network.train()
    images = {row.numpy().tobytes(): slot for slot, row in enumerate(host.memory["x"])}
    for row, (view, target) in enumerate(zip(inputs, targets, strict=True)):
        slot = images[(255 * view).round().to(torch.uint8).numpy().tobytes()]
        onehot = F.one_hot(host.memory["y"][slot], CLASSES).float()
        if row >= known:
            sharp = odds[row].square() / odds[row].square().sum()
            share = trust.probability[slot]
            onehot = share * onehot + (1 - share) * sharp
        torch.testing.assert_close(target, onehot, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(len(targets)))
    assert (targets >= 0).all()


def test_a_fit_goes_on_from_the_stream_and_learns_its_memory() -> None:
    host = host_with({"epochs": 60, "warm_up": 60}, batches=6, shaken=0.0)
    before = weights(host.network)
    losses = fit(host)
    assert not same_bits(before, weights(host.network))
    assert losses[-1] < losses[0]
    right = host.predict(host.memory["x"]).argmax(dim=1) == host.memory["y"]
    assert float(right.double().mean()) > 0.9


def test_rates_follow_the_warm_restarts() -> None:
    host = host_with({"high_lr": 0.02, "low_lr": 0.0}, batches=3)
    rates = []
    for step in range(4):
        host.fit(step)
        assert host._fitting is not None
        rates.append(host._fitting.param_groups[0]["lr"])
    assert rates == pytest.approx([0.02, 0.02, 0.01, 0.02])


def test_a_fit_may_be_left_out_or_wait_for_the_last_task() -> None:
    assert host_with({"epochs": 0}).fit_steps(last=True) == 0
    host = host_with({"fit_last_only": 1})
    assert (host.fit_steps(last=False), host.fit_steps(last=True)) == (0, 4)
    assert host_with().fit_steps(last=False) == 4


def test_a_fit_resumes_at_any_epoch() -> None:
    whole = host_with(batches=5)
    state = copy.deepcopy(whole.state_dict())
    fit(whole)
    stopped = host_with()
    stopped.load_state_dict(state)
    for step in range(4):
        other = host_with()
        other.load_state_dict(copy.deepcopy(stopped.state_dict()))
        stopped = other
        stopped.fit(step)
    stopped.end_task(last=False)
    assert same_bits(bits(whole.network), bits(stopped.network))
    for host in (whole, stopped):
        host.start_task()
        host.observe(stream_batch(90, classes=(2, 3)))
    assert same_bits(bits(whole.network), bits(stopped.network))
    assert torch.equal(whole.memory["loss"], stopped.memory["loss"])
    assert whole.costs == stopped.costs


def test_passes_are_counted() -> None:
    host = host_with({"epochs": 1, "warm_up": 0, "guesses": 2}, batches=5)
    trust = host._trust()
    before = copy.copy(host.costs)
    host.fit(0)
    batches = -(-len(trust.trusted) // 6)
    doubted = batches * min(6, len(trust.doubtful))
    learnt = len(trust.trusted) + 2 * doubted
    assert host.costs.backward - before.backward == learnt
    assert host.costs.forward - before.forward == len(host.memory) + learnt + 2 * doubted


@pytest.mark.parametrize(("slots", "steps"), [(20, 3), (5, 7), (1, 4), (0, 3)])
def test_doubtful_memories_take_turns(slots: int, steps: int) -> None:
    host = host_with({"fit_batch": 4})
    batches = host._cycled(torch.arange(100, 100 + slots), steps, min(slots, 4))
    assert [len(batch) for batch in batches] == [min(slots, 4)] * steps
    counts = torch.cat(batches).bincount(minlength=100 + slots)[100:]
    if slots:
        assert int(counts.max() - counts.min()) <= 1


# Odd input.


def test_a_memory_without_two_groups_is_trusted_and_the_reason_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = host_with({"warm_up": 0}, batches=4)
    with torch.no_grad():
        for parameter in host.network.parameters():
            parameter.zero_()
    with caplog.at_level(logging.WARNING):
        trust = host._trust()
        host._trust()
    assert len(trust.trusted) == len(host.memory)
    assert len(trust.doubtful) == 0
    assert caplog.text.count("trusted every label") == 1
    assert "same value" in caplog.text
    assert list(host.notes.values()) == [2]


def test_too_few_clean_memories_are_not_fitted_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_with({"warm_up": 0}, batches=4)
    losses = torch.ones(len(host.memory))
    losses[3] = 0.0
    monkeypatch.setattr(
        "sphere_replay.hosts.abs.in_unit_interval", lambda values: losses + 0 * values
    )
    with caplog.at_level(logging.WARNING):
        assert len(host._trust().trusted) == len(host.memory)
    assert "fewer than 2 seem clean" in caplog.text
    fit(host)


@pytest.mark.parametrize("stored", [0, 1])
def test_an_empty_memory_is_not_fitted(stored: int, caplog: pytest.LogCaptureFixture) -> None:
    host = host_with()
    if stored:
        batch = stream_batch(0, size=1)
        host.remember(batch, loss=torch.zeros(1))
    before = bits(host.network)
    with caplog.at_level(logging.WARNING):
        assert fit(host) == [0.0] * 4
    assert same_bits(before, bits(host.network))
    assert caplog.text.count(f"a memory that holds {stored} examples") == 1


def test_a_class_that_is_never_offered_is_named_and_does_no_harm() -> None:
    host = host_with({"warm_up": 0, "offered": 0.25}, batches=3)
    with torch.no_grad():
        host.network.get_parameter("head.bias")[2] = -50.0
    batch = stream_batch(9, size=16)
    assert 2 in batch.labels.tolist()
    host.observe(batch)
    assert 2 not in host.memory["y"].tolist()
    assert all(loss > 0 for loss in fit(host))
    absent = sorted(set(batch.labels.tolist()) - set(host.memory["y"].tolist()))
    names = ", ".join(map(str, absent))
    assert f"the memory fit cannot teach classes without a memory: {names}" in host.notes


def test_a_fit_that_diverges_says_so() -> None:
    host = host_with({"warm_up": 0}, batches=3)
    with torch.no_grad():
        host.network.get_parameter("head.bias").fill_(torch.nan)
    with pytest.raises(DivergenceError, match="stored example 0 is nan"):
        host.fit(0)


def test_a_fit_begins_with_its_first_step() -> None:
    with pytest.raises(ValueError, match="begins with step 0"):
        host_with(batches=2).fit(1)


@pytest.mark.parametrize(
    "options",
    [
        {"fit_batch": 3},
        {"fit_batch": 16.5},
        {"epochs": 2.5},
        {"guesses": 0},
        {"guesses": 1.5},
        {"offered": 0},
        {"offered": 2},
        {"temperature": 0},
    ],
)
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"option {next(iter(options))}"):
        AsymmetricBalancedOptions.of(options)
