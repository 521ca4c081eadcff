"""SPHERE in a training loop that is not ours: five lines that leave the model alone."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sphere_replay import Sphere, allocate
from sphere_replay.memory import Memory
from sphere_replay.replay import SphereReplay


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Net(nn.Module):
    """A network with batch norm, whose statistics would give careless scoring away."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.head = nn.Linear(12, 4)
        for parameter in self.parameters():
            with torch.no_grad():
                parameter.normal_(0, 0.5, generator=generator(parameter.numel()))

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)[1]


def bits(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, buffers and gradients, copied."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            state[f"{name}.grad"] = parameter.grad.clone()
    return state


def assert_same_bits(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


def examples(seed: int, size: int = 16) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 6, generator=generator(seed))
    return x, torch.randint(4, (size,), generator=generator(seed + 1))


def test_the_five_line_loop_draws_and_leaves_the_model_untouched() -> None:
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = Memory(40, generator=generator(1))
    memory.add(**dict(zip("xy", examples(50), strict=True)))
    recipe = Sphere.vision(3, 8)
    replay = SphereReplay(memory, recipe, every=2, generator=generator(2))
    scales = set()
    for step in range(6):
        x, y = examples(step)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        before, random_state = bits(model), torch.get_rng_state()
        draw = replay.draw(8, model=model, lr=0.1)
        assert_same_bits(before, bits(model))
        assert model.training
        assert torch.equal(random_state, torch.get_rng_state())
        assert len(set(draw.indices.tolist())) == 8
        assert torch.equal(draw["x"], memory["x"][draw.indices])
        assert torch.equal(draw["y"], memory["y"][draw.indices])
        assert 0.5 <= draw.scale <= 1
        scales.add(draw.scale)
        (draw.scale * criterion(model(draw["x"]), draw["y"])).backward()
        optimizer.step()
        memory.add(x=x, y=y)
    assert len(scales) == 3  # as many as there were scorings


def test_its_weights_are_those_of_allocate_after_a_virtual_step_by_hand() -> None:
    model = Net()
    memory = Memory(40, generator=generator(1))
    memory.add(inputs=examples(50, 30)[0], targets=examples(50, 30)[1])
    recipe = Sphere.vision(3, 8)
    replay = SphereReplay(
        memory, recipe, generator=generator(2), inputs="inputs", targets="targets"
    )
    x, y = examples(0)
    functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]  # torch's
    replay.draw(8, model=model, lr=0.2)

    base, moved = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    with torch.no_grad():
        for parameter, source in zip(moved.parameters(), model.parameters(), strict=True):
            assert source.grad is not None
            parameter.sub_(source.grad, alpha=0.2)
        features, logits = base.forward_features(memory["inputs"])
        after = moved(memory["inputs"])
    targets = memory["targets"]
    increments = functional.cross_entropy(
        after, targets, reduction="none"
    ) - functional.cross_entropy(logits, targets, reduction="none")
    expected = allocate(increments, features, recipe)
    weighting = replay.replay.weighting
    assert weighting is not None
    assert float(increments.max()) > 0
    torch.testing.assert_close(weighting.weights, expected.weights, rtol=1e-3, atol=1e-6)
    assert weighting.mass == pytest.approx(expected.mass, rel=1e-4)


def test_features_and_losses_of_ones_own() -> None:
    model = nn.Linear(6, 1)
    memory = Memory(20, generator=generator(1))
    x, _ = examples(3)
    memory.add(x=x, y=x.sum(dim=1, keepdim=True))
    replay = SphereReplay(memory, Sphere.vision(2, 5), generator=generator(2))
    model(x).square().mean().backward()
    with pytest.raises(ValueError, match="forward_features"):
        replay.draw(4, model=model, lr=0.1)
    seen = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.detach().clone())
        return (outputs - targets).square().sum(dim=1)

    draw = replay.draw(
        4, model=model, lr=0.1, per_example_loss=loss, features=lambda x: (x, model(x))
    )
    assert len(draw) == 4
    before, after = seen
    assert torch.equal(before, model(x).detach())
    assert not torch.equal(before, after)


def test_a_loop_without_a_stream_gradient_is_told_so() -> None:
    memory = Memory(20, generator=generator(1))
    memory.add(**dict(zip("xy", examples(3), strict=True)))
    with pytest.raises(RuntimeError, match=r"loss\.backward"):
        SphereReplay(memory, generator=generator()).draw(4, model=Net(), lr=0.1)
