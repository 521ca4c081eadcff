"""PuriDivER on the stream: its update, what it judges, and what it refuses."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from hosts.workbench import (
    BATCH,
    Net,
    bits,
    generator,
    listening,
    observe_and_check,
    parts,
    same_bits,
    stream_batch,
    stream_gradients_at_scorings,
)
from sphere_replay.hosts import Batch, PuriDivER
from sphere_replay.hosts.parts.cutmix import cutmix
from sphere_replay.memory import Insight, Judgement, Memory, PurityDiversity
from sphere_replay.replay import Draw


def host_with(
    select: str = "uniform", *, capacity: int = 24, tasks: int = 2, **options: float
) -> PuriDivER:
    memory = Memory(capacity, PurityDiversity(), generator=generator(1))
    host = PuriDivER(parts(select, memory=memory, options=options))
    for _ in range(tasks):
        host.start_task()
    return host


@pytest.mark.parametrize("select", ["uniform", "sphere"])
@pytest.mark.parametrize("mixing", [0.0, 1.0])
def test_a_step_by_hand(select: str, mixing: float) -> None:
    """The sum of two means, each batch mixed by itself, the replayed one by the mass."""
    host = host_with(select, cutmix=mixing)
    source = generator()

    def loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        torch.rand((), generator=source)  # the coin
        if not mixing:
            return F.cross_entropy(network(images), labels)
        mixed = cutmix(images, labels, source)
        logits = network(mixed.images)
        own, other = (F.cross_entropy(logits, y) for y in (labels, mixed.other_labels))
        return mixed.share * own + (1 - mixed.share) * other

    def losses(network: nn.Module, view: Any, batch: Batch, *drawn: Draw) -> list[Tensor]:
        # All randomness comes from one generator, in the order of use: follow it by hand.
        def shaken(images: Tensor) -> Tensor:
            return host.parts.views.augment(images, source)

        total = [loss(network, shaken(batch.images), batch.labels)]
        for draw in drawn:
            total.append(draw.scale * loss(network, shaken(draw["x"]), draw["y"]))
        return total

    for seed in range(3):
        source.set_state(host.parts.augmentation.get_state())
        observe_and_check(host, stream_batch(seed), losses)
    assert [len(draw) for draw in listening(host).draws] == [6, 6]


def test_one_forward_over_both_batches_if_asked_for() -> None:
    host = host_with(joint_batch=1, cutmix=0.0)
    source = generator()

    def losses(network: nn.Module, view: Any, batch: Batch, *drawn: Draw) -> list[Tensor]:
        images, labels = batch.images, batch.labels
        views = [host.parts.views.augment(images, source)]
        for draw in drawn:
            views.append(host.parts.views.augment(draw["x"], source))
            labels = torch.cat([labels, draw["y"]])
        return [F.cross_entropy(network(torch.cat(views)), labels)]

    for seed in range(3):
        source.set_state(host.parts.augmentation.get_state())
        observe_and_check(host, stream_batch(seed), losses)
    with pytest.raises(ValueError, match="joint_batch needs uniform draws"):
        host_with("sphere", joint_batch=1)
    fit_only = host_with("sphere", joint_batch=1, select_stream=0)
    fit_only.observe(stream_batch(4))
    assert fit_only.observe(stream_batch(5)).drawn > 0
    assert fit_only.replay.weighting is None


def test_nothing_is_replayed_in_the_first_task_unless_asked_for() -> None:
    first, eager = host_with(tasks=1), host_with(tasks=1, replay_first_task=1)
    for seed in range(3):
        assert first.observe(stream_batch(seed)).drawn == 0
        assert eager.observe(stream_batch(seed)).drawn == (6 if seed else 0)
    first.start_task()
    step = first.observe(stream_batch(3))
    wrong = listening(first).draws[-1]
    assert (step.drawn, step.mass) == (6, 1.0)
    assert step.drawn_mislabelled == int((wrong["y"] != wrong["true"]).sum())


def test_the_stream_may_stay_plain() -> None:
    """Two generators that differ make no difference then."""
    results = []
    for seed in (1, 2):
        host = host_with(tasks=1, plain_stream=1, cutmix=0.0)
        host.parts.augmentation.manual_seed(seed)
        host.observe(stream_batch(0))
        results.append(bits(host.network))
    assert same_bits(*results)


@pytest.mark.parametrize("every", [1, 3])
def test_scores_follow_the_gradient_of_the_stream_loss_alone(every: int) -> None:
    memory = Memory(24, PurityDiversity(), generator=generator(1))
    host = PuriDivER(parts("sphere", memory=memory, every=every, options={"cutmix": 0.0}))
    host.start_task()
    host.start_task()
    batches = [stream_batch(seed) for seed in range(6)]
    found, expected = stream_gradients_at_scorings(host, batches, F.cross_entropy)
    assert found
    torch.testing.assert_close(found, expected)


def test_the_selection_may_be_kept_out_of_the_stream() -> None:
    host, uniform = host_with("sphere", select_stream=0), host_with("uniform")
    for seed in range(5):
        steps = [each.observe(stream_batch(seed)) for each in (host, uniform)]
        assert steps[0] == steps[1]
    assert same_bits(bits(host.network), bits(uniform.network))
    assert not listening(host).gradients  # nothing was scored


def test_memories_are_judged_once_per_batch_by_the_network_after_its_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = host_with(capacity=12)
    asked: list[tuple[Mapping[str, Tensor], Judgement]] = []
    judge = host.insight().judge
    assert judge is not None

    def listen(candidates: Mapping[str, Tensor]) -> Judgement:
        asked.append((candidates, judge(candidates)))
        return asked[-1][1]

    monkeypatch.setattr(host, "insight", lambda: Insight(judge=listen))
    for seed in range(4):
        before, scored = len(asked), host.costs.scored
        step = host.observe(stream_batch(seed))
        assert len(asked) - before == (seed > 0)
        if seed == 0:
            continue
        candidates, judgement = asked[-1]
        images, labels = candidates["x"], candidates["y"]
        network = copy.deepcopy(host.network).eval()
        assert isinstance(network, Net)
        with torch.no_grad():
            features, logits = network.forward_features(host.parts.views.prepare(images))
        torch.testing.assert_close(judgement.features, features)
        torch.testing.assert_close(
            judgement.losses, F.cross_entropy(logits, labels, reduction="none")
        )
        assert torch.equal(judgement.head, host.network.get_parameter("head.weight"))
        assert step.replay_loss is not None
        loss = (BATCH * step.loss + 6 * step.replay_loss) / (BATCH + 6)
        assert judgement.diversity == pytest.approx(0.5 * min(1.0, 1 / loss))
        assert host.costs.scored - scored == len(images)
    assert host.network.training


def test_a_first_batch_that_is_larger_than_the_memory() -> None:
    host = host_with(capacity=4, tasks=1)
    host.observe(stream_batch(0))
    counts = host.memory["y"].bincount()
    assert len(host.memory) == 4
    assert int(counts.max()) <= 2


def test_the_memory_becomes_purer_than_the_stream() -> None:
    """A network that knows the classes keeps what agrees with it."""
    host = host_with(capacity=20, diversity=0.0, cutmix=0.0, tasks=1)
    source = generator(5)
    prototypes = 255 * (torch.rand(3, 1, 4, 4, generator=source) < 0.5)
    for _ in range(60):
        true = torch.randint(3, (BATCH,), generator=source)
        wrong = torch.rand(BATCH, generator=source) < 0.3
        labels = torch.where(wrong, (true + 1) % 3, true)
        noise = torch.randint(-40, 40, (BATCH, 1, 4, 4), generator=source)
        images = (prototypes[true] + noise).clamp(0, 255).to(torch.uint8)
        host.observe(Batch(images, labels, true))
    pure = (host.memory["y"] == host.memory["true"]).double().mean()
    assert float(pure) > 0.9
    assert sorted(host.memory["y"].bincount().tolist()) == [6, 7, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"diverstiy": 0.5}, r"unknown option.*diversity"),
        ({"diversity": 1.5}, r"diversity takes a share from 0 to 1, got 1\.5"),
        ({"cutmix": 2}, "cutmix takes a share from 0 to 1, got 2"),
        ({"epochs": 0}, "epochs takes a whole number of at least 1, got 0"),
        ({"fit_batch": 1}, "fit_batch takes a whole number of at least 2, got 1"),
        ({"select_fit": 2}, "select_fit takes true or false"),
        ({"relabel_confident": 0.5}, "relabel_confident takes true or false"),
        ({"weight_decay": -1}, "weight_decay takes a number that is not negative, got -1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PuriDivER(parts(options=options))


def test_a_network_without_a_head_is_refused_before_any_work() -> None:
    memory = Memory(8, PurityDiversity(), generator=generator(1))
    headless = parts(memory=memory)
    headless.network = nn.Flatten()
    headless.network.weight = nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=r"Flatten has no head\.weight"):
        PuriDivER(headless)
