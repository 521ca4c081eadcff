"""A small network, views whose randomness shows, and a reference step: what host tests share."""

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from sphere_replay.allocation import Sphere
from sphere_replay.hosts import Batch, Host, HostParts
from sphere_replay.memory import Memory
from sphere_replay.replay import Draw, Economy, Engine, Labels, Scorer, Selection, selection_named
from sphere_replay.scoring import Scores

CLASSES = 6
PIXELS = (1, 4, 4)
BATCH = 8


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Net(nn.Module):
    """One hidden layer with batch norm: which batches were seen together leaves a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(16, 12)
        self.norm = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, CLASSES)
        source = generator(11)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0, 0.4, generator=source)

    def forward_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.norm(self.hidden(images.flatten(1))))
        return features, self.head(features)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_features(images)[1]


class Shaken:
    """Training views are shaken at random, so that a view used in the wrong place is noticed."""

    def __init__(self, amount: float = 0.3) -> None:
        self.amount = amount

    @property
    def augments(self) -> bool:
        return self.amount > 0

    def prepare(self, images: Tensor) -> Tensor:
        return images.float() / 255

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.prepare(images) + self.amount * torch.randn(images.shape, generator=generator)

    def strengthen(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.augment(images, generator).flip(-1)


class Listening(Engine):
    """An engine that remembers its draws, and the gradients that were there when it scored."""

    network: nn.Module

    def __init__(
        self, memory: Memory, selection: Selection, every: int, economy: Economy | None = None
    ) -> None:
        super().__init__(memory, selection, generator=generator(2), every=every, economy=economy)
        self.draws: list[Draw] = []
        self.gradients: list[list[Tensor]] = []

    def draw(self, count: int, score: Scorer, labels: Labels | None = None) -> Draw:
        def listening(slots: Tensor, *, increments: bool = True) -> Scores:
            gradients = [parameter.grad for parameter in self.network.parameters()]
            self.gradients.append([value.clone() for value in gradients if value is not None])
            return score(slots, increments=increments)

        self.draws.append(super().draw(count, listening, labels))
        return self.draws[-1]

    def redraw(self, count: int) -> Draw:
        self.draws.append(super().redraw(count))
        return self.draws[-1]


def parts(
    select: str | Selection = "uniform",
    *,
    memory: Memory | None = None,
    capacity: int = 24,
    options: Mapping[str, float] | None = None,
    shaken: float = 0.3,
    every: int = 1,
    lr: float = 0.1,
    virtual_lr: float = 0.2,
    economy: Economy | None = None,
) -> HostParts:
    """Parts that are equal for equal arguments."""
    if memory is None:
        memory = Memory(capacity, generator=generator(1))
    recipe = Sphere.vision(3, 6)
    selection = selection_named(select, recipe) if isinstance(select, str) else select
    replay = Listening(memory, selection, every, economy)
    replay.network = Net()
    return HostParts(
        network=replay.network,
        memory=memory,
        replay=replay,
        views=Shaken(shaken),
        augmentation=generator(3),
        num_classes=CLASSES,
        lr=lr,
        replay_batch=6,
        virtual_lr=virtual_lr,
        options=dict(options or {}),
    )


def stream_batch(seed: int, classes: tuple[int, ...] = (0, 1, 2), size: int = BATCH) -> Batch:
    """Random images whose labels are among `classes`, a quarter of them wrong."""
    source = generator(1000 + seed)
    images = torch.randint(256, (size, *PIXELS), dtype=torch.uint8, generator=source)
    labels = torch.tensor(classes)[torch.randint(len(classes), (size,), generator=source)]
    wrong = torch.rand(size, generator=source) < 0.25
    return Batch(images, labels, torch.where(wrong, (labels + 1) % CLASSES, labels))


def bits(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, copied."""
    return {name: value.clone() for name, value in network.state_dict().items()}


def same_bits(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


def weights(network: nn.Module) -> dict[str, Tensor]:
    """Parameters alone, copied: batch-norm statistics may differ."""
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def listening(host: Host) -> Listening:
    assert isinstance(host.replay, Listening)
    return host.replay


def observe_and_check(host: Host, batch: Batch, losses: Callable[..., list[Tensor]]) -> None:
    """Let the host observe, and redo the step on a copy by explicit gradients of `losses`.

    `losses(network, view, batch, *draws)` gets the draws of this step only; `view` makes the same
    training views as the host's, if asked in the same order.
    """
    reference = copy.deepcopy(host.network)
    parameters = dict(reference.named_parameters())
    state = host.parts.augmentation.get_state()
    draws = listening(host).draws
    before = len(draws)
    host.observe(batch)
    source = generator().set_state(state)

    def view(images: Tensor) -> Tensor:
        return host.parts.views.augment(images, source)

    total = torch.stack(losses(reference, view, batch, *draws[before:])).sum()
    gradients = torch.autograd.grad(total, list(parameters.values()))
    for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
        torch.testing.assert_close(
            host.network.get_parameter(name),
            value.detach() - host.parts.lr * gradient,
            rtol=1e-5,
            atol=1e-6,
        )
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(host.network.get_buffer(name), buffer, rtol=1e-5, atol=1e-6)


def stream_gradients_at_scorings(
    host: Host, batches: list[Batch], loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Gradients in the network at each scoring, and those of the stream loss alone at that step."""
    found = listening(host).gradients
    expected: list[list[Tensor]] = []
    for batch in batches:
        reference = copy.deepcopy(host.network)
        source = generator().set_state(host.parts.augmentation.get_state())
        before = len(found)
        host.observe(batch)
        logits = reference(host.parts.views.augment(batch.images, source))
        gradient = torch.autograd.grad(loss(logits, batch.labels), list(reference.parameters()))
        expected += [list(gradient)] * (len(found) - before)
    return found, expected
