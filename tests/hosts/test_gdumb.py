"""GDumb: learns nothing from the stream, then fits its memory from the first weights."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from hosts.workbench import bits, generator, parts, same_bits, stream_batch
from sphere_replay.hosts import GDumb
from sphere_replay.hosts.parts.cutmix import cutmix
from sphere_replay.memory import GreedyBalanced, Memory
from sphere_replay.randomness import branched

RATES = [0.005, 0.05, 0.05, 0.02525]
SHORT = {"epochs": 4, "fit_batch": 5}


def host_with(
    options: dict[str, float] | None = None, batches: int = 4, shaken: float = 0.3
) -> GDumb:
    memory = Memory(18, GreedyBalanced(), generator=generator(1))
    host = GDumb(parts(memory=memory, options=SHORT | (options or {}), shaken=shaken))
    for seed in range(batches):
        host.observe(stream_batch(seed, classes=(0, 1, 2)))
    return host


def end_task(host: GDumb, *, last: bool) -> None:
    """What a run does at a task's end."""
    for step in range(host.fit_steps(last=last)):
        host.fit(step)
    host.end_task(last=last)


def fit_by_hand(host: GDumb, clip: float, mixing: bool) -> dict[str, Tensor]:
    """Four epochs of SGD with momentum, weight decay and clipping, written out."""
    network = copy.deepcopy(host.network)
    source = generator().set_state(host.parts.augmentation.get_state())
    parameters = list(network.parameters())
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    for rate in RATES:
        with branched(source):
            order = torch.randperm(len(host.memory), generator=source)
            for rows in torch.split(order, 5):
                views = host.parts.views.augment(host.memory["x"][rows], source)
                labels = host.memory["y"][rows]
                torch.rand((), generator=source)  # the coin for CutMix
                if mixing:
                    mixed = cutmix(views, labels, source)
                    logits = network(mixed.images)
                    own = -F.log_softmax(logits, dim=1).gather(1, labels[:, None]).mean()
                    other = (
                        -F.log_softmax(logits, dim=1).gather(1, mixed.other_labels[:, None]).mean()
                    )
                    loss = mixed.share * own + (1 - mixed.share) * other
                else:
                    loss = F.cross_entropy(network(views), labels)
                gradients = torch.autograd.grad(loss, parameters)
                norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
                factor = min(1.0, clip / (float(norm) + 1e-6))
                with torch.no_grad():
                    for parameter, momentum, gradient in zip(
                        parameters, momenta, gradients, strict=True
                    ):
                        momentum.mul_(0.9).add_(gradient * factor + 1e-6 * parameter)
                        parameter.sub_(rate * momentum)
    return bits(network)


@pytest.mark.parametrize("clip", [10.0, 0.3])
@pytest.mark.parametrize("mixing", [False, True])
def test_a_fit_by_hand(clip: float, mixing: bool) -> None:
    host = host_with({"clip": clip, "cutmix": float(mixing)})
    expected = fit_by_hand(host, clip, mixing)
    before = bits(host.network)
    end_task(host, last=True)
    fitted = bits(host.network)
    assert not same_bits(before, fitted)
    torch.testing.assert_close(fitted, expected, rtol=1e-3, atol=1e-5)


def test_the_stream_teaches_nothing() -> None:
    host = host_with(batches=0)
    before, views = bits(host.network), host.parts.augmentation.get_state()
    for seed in range(6):
        step = host.observe(stream_batch(seed))
        assert (step.replay_loss, step.mass, step.drawn) == (None, None, 0)
    assert same_bits(before, bits(host.network))
    assert torch.equal(views, host.parts.augmentation.get_state())
    assert (host.costs.forward, host.costs.backward) == (0, 0)
    assert host.memory["y"].bincount().tolist() == [6, 6, 6]


def test_two_fits_of_the_same_memory_agree() -> None:
    host = host_with()
    state = host.parts.augmentation.get_state()
    end_task(host, last=False)
    first = bits(host.network)
    host.parts.augmentation.set_state(state)
    end_task(host, last=True)
    assert same_bits(first, bits(host.network))


def test_a_fit_knows_nothing_of_the_fits_before_it() -> None:
    """Also not through batch-norm statistics, momentum or the order of the classes."""
    refitted, fresh = host_with(batches=2), host_with(batches=2)
    end_task(refitted, last=False)
    for host in (refitted, fresh):
        host.observe(stream_batch(9, classes=(3, 4)))
        host.parts.augmentation.manual_seed(77)
        end_task(host, last=True)
    assert same_bits(bits(refitted.network), bits(fresh.network))


def test_later_fits_differ_when_the_memory_does() -> None:
    host, other = host_with(batches=2), host_with(batches=2)
    other.observe(stream_batch(9, classes=(3, 4)))
    for each in (host, other):
        end_task(each, last=True)
    assert not same_bits(bits(host.network), bits(other.network))


def test_fit_last_only_waits_for_the_last_task() -> None:
    host = host_with({"fit_last_only": 1})
    before = bits(host.network)
    end_task(host, last=False)
    assert same_bits(before, bits(host.network))
    end_task(host, last=True)
    assert not same_bits(before, bits(host.network))


def test_otherwise_it_fits_after_every_task() -> None:
    host = host_with()
    before = bits(host.network)
    end_task(host, last=False)
    assert not same_bits(before, bits(host.network))


def test_a_fit_goes_on_where_it_was_left() -> None:
    host, other = host_with(), host_with(batches=0)
    for step in range(2):
        host.fit(step)
    other.load_state_dict(copy.deepcopy(host.state_dict()))
    for each in (host, other):
        for step in range(2, 4):
            each.fit(step)
    assert same_bits(bits(host.network), bits(other.network))


def test_a_fit_begins_at_its_beginning() -> None:
    with pytest.raises(ValueError, match="begins with step 0"):
        host_with().fit(1)


def test_a_fit_counts_its_passes() -> None:
    host = host_with({"epochs": 3})
    end_task(host, last=True)
    assert host.costs.forward == host.costs.backward == 3 * 18
    assert host.costs.scored == 0


def test_a_fit_learns_its_memory() -> None:
    host = host_with({"epochs": 64, "cutmix": 0.0}, shaken=0.0)
    end_task(host, last=True)
    right = host.predict(host.memory["x"]).argmax(dim=1) == host.memory["y"]
    assert float(right.double().mean()) > 0.9


def test_the_first_weights_are_part_of_the_state() -> None:
    host = host_with()
    end_task(host, last=False)
    state = copy.deepcopy(host.state_dict())
    memory = Memory(18, GreedyBalanced(), generator=generator(1))
    other_parts = parts(memory=memory, options=SHORT)
    with torch.no_grad():
        for parameter in other_parts.network.parameters():
            parameter.add_(1.0)
    other = GDumb(other_parts)
    other.load_state_dict(state)
    for each in (host, other):
        end_task(each, last=True)
    assert same_bits(bits(host.network), bits(other.network))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cutmix": 2}, "cutmix takes a share from 0 to 1, got 2"),
        ({"fit_last_only": 0.5}, "fit_last_only takes true or false"),
        ({"epochs": 0}, "epochs takes a whole number of at least 1, got 0"),
        ({"fit_batch": 1}, "fit_batch takes a whole number of at least 2, got 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        host_with(options)
