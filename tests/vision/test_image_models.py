import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.vision import MLP, Classifier, CosineHead, Head, ResNet18, build_model
from sphere_replay.vision.models import BasicBlock


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator_for(0, "test inputs"))


def small_resnet(head: str = "linear") -> ResNet18:
    with globally_seeded(generator_for(0, "initialization")):
        return ResNet18(10, width=4, head=head).eval()


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_full_network_has_eleven_million_parameters() -> None:
    with torch.device("meta"):
        model = ResNet18(10)
    assert parameters(model) == 11_173_962
    assert model.num_features == 512


def test_the_reduced_network_has_160_features() -> None:
    model = ResNet18(10, width=20)
    assert model.num_features == 160
    assert model.eval().embed(inputs(2, 3, 32, 32)).shape == (2, 160)


@pytest.mark.parametrize(("size", "last_map"), [(32, 4), (64, 8)])
def test_resnet_features_average_the_last_map(size: int, last_map: int) -> None:
    model = small_resnet()
    images = inputs(3, 3, size, size)
    maps = functional.relu(model.bn1(model.conv1(images)))
    assert maps.shape[2:] == (size, size)
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        maps = stage(maps)
    assert maps.shape == (3, 32, last_map, last_map)
    assert torch.allclose(model.embed(images), maps.flatten(2).mean(dim=2), atol=1e-6)


def test_a_block_is_a_residual_block() -> None:
    block = small_resnet().layer2[0]
    assert isinstance(block, BasicBlock)
    maps = inputs(2, 4, 8, 8)
    hidden = block.bn2(block.conv2(block.bn1(block.conv1(maps)).clamp(min=0)))
    expected = (hidden + block.shortcut[1](block.shortcut[0](maps))).clamp(min=0)
    assert torch.allclose(block(maps), expected)


@pytest.mark.parametrize("model", [small_resnet(), MLP(3 * 8 * 8, 10)], ids=["resnet", "mlp"])
def test_features_are_never_negative_and_logits_come_from_them(model: Classifier) -> None:
    images = inputs(5, 3, 8, 8)
    features, logits = model.forward_features(images)
    assert float(features.detach().min()) >= 0
    assert features.shape == (5, model.num_features)
    assert torch.equal(features, model.embed(images))
    assert torch.equal(logits, model.head(features))
    assert torch.equal(logits, model(images))
    assert logits.shape == (5, model.num_classes)


def test_conv_bn_pairs_name_every_convolution_once_with_its_own_normalization() -> None:
    model = small_resnet()
    pairs = model.conv_bn_pairs()
    assert len(pairs) == 20
    convolutions = {id(m) for m in model.modules() if isinstance(m, nn.Conv2d)}
    normalizations = {id(m) for m in model.modules() if isinstance(m, nn.BatchNorm2d)}
    assert {id(conv) for conv, _ in pairs} == convolutions
    assert {id(bn) for _, bn in pairs} == normalizations
    called: list[int] = []
    for conv, bn in pairs:
        conv.register_forward_hook(lambda module, *_: called.append(id(module)))
        bn.register_forward_hook(lambda module, *_: called.append(id(module)))
    model(inputs(1, 3, 8, 8))
    follower = dict(zip(called[::2], called[1::2], strict=True))
    assert follower == {id(conv): id(bn) for conv, bn in pairs}


def test_the_mlp_is_784_100_100_10_with_xavier_weights() -> None:
    model = MLP(784, 10)
    assert parameters(model) == 784 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10
    for layer, fan in ((model.hidden1, 884), (model.hidden2, 200), (model.head, 110)):
        assert isinstance(layer, nn.Linear)
        bound = (6 / fan) ** 0.5
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert not layer.bias.any()


def test_the_mlp_feature_is_the_second_hidden_activation() -> None:
    model = MLP(12, 4)
    images = inputs(3, 3, 2, 2)
    first = (images.flatten(1) @ model.hidden1.weight.T + model.hidden1.bias).clamp(min=0)
    second = (first @ model.hidden2.weight.T + model.hidden2.bias).clamp(min=0)
    assert torch.allclose(model.embed(images), second, atol=1e-6)


def test_cosine_scores_are_ten_cosines() -> None:
    head = CosineHead(6, 4)
    features = inputs(9, 6)
    expected = 10 * functional.cosine_similarity(features[:, None], head.weight[None], dim=2)
    assert torch.allclose(head(features), expected, atol=1e-3)
    assert [name for name, _ in head.named_parameters()] == ["weight"]


def test_cosine_scores_are_bounded_and_reach_for_the_bound() -> None:
    head = CosineHead(6, 4)
    aligned = head(1000 * head.weight).diagonal()
    assert float(aligned.detach().min()) > 9.99
    assert float(head(1e4 * inputs(500, 6)).detach().abs().max()) <= 10


def test_cosine_scores_ignore_the_length_of_features_and_rows() -> None:
    head = CosineHead(6, 4)
    features = inputs(9, 6)
    before = head(features)
    assert torch.allclose(head(7 * features), before, atol=1e-3)
    with torch.no_grad():
        head.weight.mul_(50)
    assert torch.allclose(head(features), before, atol=1e-3)


def test_a_dead_feature_has_zero_scores_and_finite_gradients() -> None:
    head = CosineHead(6, 4)
    scores = head(torch.zeros(2, 6))
    scores.sum().backward()
    assert not scores.any()
    assert head.weight.grad is not None
    assert bool(head.weight.grad.isfinite().all())


@pytest.mark.parametrize(
    ("dataset", "kind", "classes"),
    [("digits", MLP, 10), ("mnist", MLP, 10), ("cifar100", ResNet18, 100)],
)
@pytest.mark.parametrize("head", Head)
def test_each_dataset_has_its_network(
    dataset: str, kind: type[Classifier], classes: int, head: Head
) -> None:
    model = build_model(dataset, generator_for(0, "initialization"), head=head, width=2)
    assert type(model) is kind
    assert model.num_classes == classes
    assert isinstance(model.head, CosineHead) == (head is Head.COSINE)


def test_building_is_reproducible() -> None:
    first, again, other = (
        build_model("cifar10", generator_for(seed, "initialization"), width=2).state_dict()
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_unknown_heads_and_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="'round' is not a valid Head"):
        MLP(4, 2, head="round")
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        ResNet18(10, width=0)
