"""The folded forward computes what the network computes in eval mode, and follows its weights."""

import copy
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sphere_replay.scoring import FoldedForward, score, virtual_step


def conv3(inward: int, outward: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inward, outward, 3, stride, padding=1, bias=False)


def draw_weights(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            fan_in = parameter[0].numel()
            nn.init.normal_(parameter, std=(2 / fan_in) ** 0.5, generator=generator)
        else:
            center = 0 if name.endswith("bias") else 1
            parameter.data = center + 0.1 * torch.randn(parameter.shape, generator=generator)


class Block(nn.Module):
    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3(inward, outward, stride), nn.BatchNorm2d(outward)
        self.conv2, self.bn2 = conv3(outward, outward), nn.BatchNorm2d(outward)
        self.shortcut = nn.Sequential()
        if stride != 1 or inward != outward:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """CIFAR-style: 3x3 stem, two blocks at each of four widths, global average pool."""

    def __init__(self, width: int = 8, classes: int = 10, seed: int = 0) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3(3, width), nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.layers = nn.Sequential()
        for stage, (inward, outward) in enumerate(pairwise(widths)):
            self.layers.append(Block(inward, outward, 1 if stage == 0 else 2))
            self.layers.append(Block(outward, outward, 1))
        self.linear = nn.Linear(8 * width, classes)
        draw_weights(self, seed)

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.layers(functional.relu(self.bn1(self.conv1(x)))).mean((2, 3))
        return features, self.linear(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)[1]

    def conv_bn_pairs(self) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
        pairs = [(self.conv1, self.bn1)]
        for block in self.layers:
            assert isinstance(block, Block)
            pairs += [(block.conv1, block.bn1), (block.conv2, block.bn2)]
            if len(block.shortcut):
                conv, bn = block.shortcut
                assert isinstance(conv, nn.Conv2d)
                assert isinstance(bn, nn.BatchNorm2d)
                pairs.append((conv, bn))
        return pairs


class OneConv(nn.Module):
    """One pair, as plain or as odd as the test wants it."""

    def __init__(self, conv: nn.Conv2d | None = None, bn: nn.BatchNorm2d | None = None) -> None:
        super().__init__()
        self.conv = conv or nn.Conv2d(3, 4, 3)
        self.bn = bn or nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)
        draw_weights(self, seed=0)

    def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.bn(self.conv(x))).mean((2, 3))
        return features, self.head(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)[1]

    def conv_bn_pairs(self) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
        return [(self.conv, self.bn)]


def images(count: int, seed: int = 1, side: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 3, side, side, generator=generator)
    return x, torch.randint(2, (count,), generator=generator)


def train_a_little(model: nn.Module, steps: int = 3) -> None:
    """Weights and statistics away from their start; gradients left behind."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    model.train()
    for seed in range(steps):
        optimizer.step()
        optimizer.zero_grad()
        x, y = images(16, seed + 10)
        torch.autograd.backward(functional.cross_entropy(model(x), y))


def eval_forward(model: ResNet18 | OneConv, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return copy.deepcopy(model).eval().forward_features(x)


def assert_equal_forwards(folded: FoldedForward, model: ResNet18 | OneConv, x: Tensor) -> None:
    for found, expected in zip(folded(x), eval_forward(model, x), strict=True):
        assert (found - expected).abs().max() < 1e-5
        assert (found - expected).norm() < 1e-6 * expected.norm()


def test_equal_to_the_eval_forward_before_and_after_training() -> None:
    model = ResNet18()
    x, _ = images(70)
    folded = FoldedForward(model)
    assert_equal_forwards(folded, model, x)
    train_a_little(model)
    stale = folded(x)[1]
    folded.refresh()
    assert_equal_forwards(folded, model, x)
    assert not torch.allclose(stale, folded(x)[1], atol=1e-3)


def test_buffers_alone_are_taken_over() -> None:
    model = ResNet18()
    x, _ = images(5)
    folded = FoldedForward(model)
    model.bn1.running_mean = torch.linspace(-1, 1, 8)
    folded.refresh()
    assert_equal_forwards(folded, model, x)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_every_form_of_the_pair(affine: bool, bias: bool) -> None:
    conv = nn.Conv2d(3, 4, 3, stride=2, bias=bias)
    model = OneConv(conv, nn.BatchNorm2d(4, eps=1e-2, affine=affine))
    train_a_little(model)
    assert_equal_forwards(FoldedForward(model), model, images(9)[0])


def test_double_precision_is_kept() -> None:
    model = ResNet18()
    train_a_little(model)
    model.double()
    x = images(4)[0].double()
    found, expected = FoldedForward(model)(x)[1], eval_forward(model, x)[1]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_weight_shared_with_an_unfolded_layer() -> None:
    class Tied(OneConv):
        def __init__(self) -> None:
            super().__init__()
            self.again = nn.Conv2d(3, 4, 3)
            self.again.weight = self.conv.weight

        def forward_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
            features = (self.bn(self.conv(x)) + self.again(x)).mean((2, 3))
            return features, self.head(features)

    model = Tied()
    train_a_little(model)
    assert_equal_forwards(FoldedForward(model), model, images(3)[0])


def test_model_is_only_read() -> None:
    model = ResNet18()
    train_a_little(model)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    gradients = [p.grad for p in model.parameters()]
    FoldedForward(model)(images(3)[0])
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(module.training for module in model.modules())
    assert all(isinstance(bn, nn.BatchNorm2d) for _, bn in model.conv_bn_pairs())


def test_chunks_and_ordinary_results() -> None:
    model = OneConv()
    x, _ = images(10)
    sizes: list[int] = []
    model.head.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    features, logits = FoldedForward(model, chunk=4)(x)
    assert sizes == [4, 4, 2]
    assert features.shape == (10, 4)
    assert not logits.is_inference()
    assert FoldedForward(model)(x[:0])[1].shape == (0, 2)


def test_score_folds_both_passes() -> None:
    model = ResNet18(classes=2)
    train_a_little(model)
    x, y = images(40)
    seen: list[int] = []
    normalized: list[int] = []
    model.linear.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    scores = score(model, x, y, lr=0.1)
    assert sum(seen) == 80

    hook = model.bn1.register_forward_hook(lambda *_: normalized.append(1))
    plain = score(model, x, y, lr=0.1)
    hook.remove()
    assert normalized == [1, 1], "a hooked batch norm must be run, not folded"
    torch.testing.assert_close(scores.increments, plain.increments, rtol=1e-4, atol=2e-6)
    torch.testing.assert_close(scores.losses, plain.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scores.features, plain.features, rtol=1e-4, atol=1e-5)
    assert scores.increments.abs().max() > 1e-2


def test_score_with_folding_leaves_the_model_untouched_and_zero_steps_are_exact() -> None:
    model = ResNet18(classes=2)
    train_a_little(model)
    model.layers[1].eval()
    x, y = images(6)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    assert torch.equal(score(model, x, y, lr=0.0).increments, torch.zeros(6))
    assert score(model, x, y, lr=0.1).increments.abs().max() > 0
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]


def test_forward_built_once_is_refreshed_by_score() -> None:
    model = ResNet18(classes=2)
    folded = FoldedForward(model)
    train_a_little(model)
    x, y = images(12)
    kept = score(model, x, y, lr=0.1, forward=folded)
    fresh = score(model, x, y, lr=0.1)
    assert torch.equal(kept.increments, fresh.increments)
    with virtual_step(model, 0.1):
        assert_equal_forwards(folded, model, x)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_no_folding_where_it_would_not_be_exact(mode: str) -> None:
    model = OneConv(bn=nn.BatchNorm2d(4, track_running_stats=mode == "train"))
    train_a_little(model)
    x, y = images(12)
    scores = score(model, x, y, lr=0.1, mode="train" if mode == "train" else "eval")
    expected = torch.relu(
        functional.batch_norm(
            model.conv(x), None, None, model.bn.weight, model.bn.bias, training=True
        )
    ).mean((2, 3))
    torch.testing.assert_close(scores.features, expected.detach())


def test_half_precision_and_autocast_are_run_as_they_are() -> None:
    model = OneConv()
    train_a_little(model)
    x, y = images(12)
    exact = score(model, x, y, lr=0.1)
    normalized: list[torch.dtype] = []

    class Watched(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            normalized.append(x.dtype)
            return super().forward(x)

    with torch.autocast("cpu", torch.bfloat16):
        cast = score(model, x, y, lr=0.1)
    torch.testing.assert_close(cast.increments, exact.increments, rtol=0.1, atol=0.02)
    model.bn.__class__ = Watched
    torch.testing.assert_close(score(model, x, y, lr=0.1).losses, exact.losses)
    assert len(normalized) == 2, "a subclass may do something else and must be run"
    half = copy.deepcopy(model).bfloat16()
    half.zero_grad()
    torch.autograd.backward(half(x.bfloat16()).float().square().mean())
    assert score(half, x.bfloat16(), y, lr=0.1).increments.isfinite().all()
    assert normalized[-1] is torch.bfloat16


class WrongChannels(OneConv):
    def __init__(self) -> None:
        super().__init__(bn=nn.BatchNorm2d(5))


class NamedTwice(OneConv):
    def conv_bn_pairs(self) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
        return [(self.conv, self.bn), (self.conv, self.bn)]


class ForeignModule(OneConv):
    def conv_bn_pairs(self) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
        return [(self.conv, nn.BatchNorm2d(4))]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (WrongChannels, "conv has 4 channels but bn 5"),
        (NamedTwice, "names conv twice"),
        (ForeignModule, "not a submodule of the model"),
        (lambda: OneConv().half(), "cannot fold bn into conv: torch.float16 is too coarse"),
        (lambda: OneConv(bn=nn.BatchNorm2d(4, track_running_stats=False)), "running statistics"),
    ],
)
def test_declarations_are_checked(make: Callable[[], OneConv], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FoldedForward(make())


def test_models_without_declaration_and_bad_chunks() -> None:
    with pytest.raises(TypeError, match="needs the methods"):
        FoldedForward(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        FoldedForward(OneConv(), chunk=0)
