"""The networks of the vision experiments: MLPs for digits and features, ResNet-18 for photographs.

Every classifier is an embedding followed by a head, and shows both: SPHERE measures distances
between embeddings, and gets them out of the same forward pass as the logits.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sphere_replay.errors import ConfigError
from sphere_replay.randomness import globally_seeded
from sphere_replay.vision.specs import dataset_spec


class Head(StrEnum):
    """From features to logits."""

    LINEAR = "linear"
    COSINE = "cosine"


class Initialization(StrEnum):
    """Where the weights of the MLP begin."""

    XAVIER = "xavier"
    """Xavier-uniform weights, biases zero."""
    TORCH = "torch"
    """As torch makes a linear layer: weights and biases uniform within 1 / sqrt(inputs)."""


class CosineHead(nn.Module):
    """Scores 10 cos(φ, w_c), without bias: `[n, d]` to `[n, C]`, all in (-10, 10)."""

    scale = 10.0
    epsilon = 1e-5
    """Added to both norms: a feature of zeros has the scores zero instead of NaN."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        # Starts where a linear layer does; only the direction of a row matters.
        self.weight = nn.Parameter(nn.Linear(num_features, num_classes, bias=False).weight.detach())

    def forward(self, features: Tensor) -> Tensor:
        """Scores of the classes."""
        cosines: Tensor = functional.linear(self._unit(features), self._unit(self.weight))
        return cosines * self.scale

    def _unit(self, rows: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows / (norms + self.epsilon)


HIDDEN = 100
"""Units of each of the MLP's two layers."""
NETWORK = {
    "hidden": HIDDEN,
    "cosine_scale": CosineHead.scale,
    "cosine_epsilon": CosineHead.epsilon,
}
"""By the names that a run's identity knows them by."""


class Classifier(nn.Module):
    """An embedding and a head; subclasses define `embed`.

    With `autocast` on, the embedding is computed in bfloat16 in training mode. Features leave it in
    float32, and the head works in float32: losses and stored logits never see half precision.
    Evaluation mode is float32 throughout, because scored increments are differences of losses.
    """

    autocast = False

    def __init__(self, num_features: int, num_classes: int, head: Head | str) -> None:
        super().__init__()
        self.num_features = num_features
        self.num_classes = num_classes
        build = CosineHead if Head(head) is Head.COSINE else nn.Linear
        self.head: nn.Module = build(num_features, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Features φ `[n, d]`, after the last ReLU and so never negative."""
        raise NotImplementedError

    def forward_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features `[n, d]` and logits `[n, C]` of one pass."""
        with self._precision(images):
            features = self.embed(images)
        features = features.to(images.dtype)
        return features, self.head(features)

    def _precision(self, images: Tensor) -> AbstractContextManager[object]:
        # An autocast that is off would switch off one that the caller has switched on.
        if not (self.autocast and self.training):
            return nullcontext()
        return torch.autocast(images.device.type, torch.bfloat16)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[n, C]`."""
        return self.forward_features(images)[1]


class MLP(Classifier):
    """Input - 100 - 100 - C with ReLU."""

    def __init__(
        self,
        input_size: int,
        num_classes: int,
        *,
        hidden: int = HIDDEN,
        head: Head | str = "linear",
        initialization: Initialization | str = Initialization.XAVIER,
    ) -> None:
        super().__init__(hidden, num_classes, head)
        self.hidden1 = nn.Linear(input_size, hidden)
        self.hidden2 = nn.Linear(hidden, hidden)
        if initialization == Initialization.XAVIER:
            _start_uniform(self)

    def embed(self, images: Tensor) -> Tensor:
        """The second hidden activation; images of any shape are flattened."""
        hidden = functional.relu(self.hidden1(images.flatten(1)))
        return functional.relu(self.hidden2(hidden))


class FeatureMLP(Classifier):
    """Encoder's features - hidden - C with ReLU, or the head alone if `hidden` is 0.

    First weights as the MLP's; without a hidden layer the embedding is the input.
    """

    def __init__(
        self, input_size: int, num_classes: int, *, hidden: int, head: Head | str = "linear"
    ) -> None:
        super().__init__(hidden or input_size, num_classes, head)
        layers = [nn.Linear(input_size, hidden), nn.ReLU()] if hidden else []
        self.hidden = nn.Sequential(*layers)
        _start_uniform(self)

    def embed(self, images: Tensor) -> Tensor:
        """The hidden activation."""
        features: Tensor = self.hidden(images.flatten(1))
        return features


def _start_uniform(network: nn.Module) -> None:
    """Xavier-uniform weights of linear layers, biases zero."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[n, inputs, h, w]` to `[n, outputs, h/stride, w/stride]`."""
        hidden = functional.relu(self.bn1(self.conv1(maps)))
        return functional.relu(self.bn2(self.conv2(hidden)) + self.shortcut(maps))


class ResNet18(Classifier):
    """ResNet-18 for images of 32 or 64 pixels: a 3x3 stem of stride 1 and no pooling after it.

    `width` w gives stages of w, 2w, 4w, 8w channels and features of 8w numbers, the global average
    of the last stage. 64 is the full network; 20 the reduced one of much online-learning code.
    """

    def __init__(
        self, num_classes: int, *, width: int = 64, channels: int = 3, head: Head | str = "linear"
    ) -> None:
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}; 64 is the full network")
        super().__init__(8 * width, num_classes, head)
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, 2 * width, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, stride=2)
        self.layer4 = _stage(4 * width, 8 * width, stride=2)

    def embed(self, images: Tensor) -> Tensor:
        """The last stage, averaged over its pixels."""
        maps: Tensor = functional.relu(self.bn1(self.conv1(images)))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return maps.mean(dim=(2, 3))

    def conv_bn_pairs(self) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
        """Every convolution with the normalization that follows it, from the stem on."""
        pairs = [(self.conv1, self.bn1)]
        for block in self.modules():
            if isinstance(block, BasicBlock):
                pairs += [(block.conv1, block.bn1), (block.conv2, block.bn2)]
                if len(block.shortcut):
                    conv, bn = block.shortcut
                    assert isinstance(conv, nn.Conv2d)
                    assert isinstance(bn, nn.BatchNorm2d)
                    pairs.append((conv, bn))
        return pairs


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))


Shape = tuple[int, int, int]
"""Channels, height and width of stored images, or the size of features and 1, 1."""


def _mlp(
    shape: Shape,
    num_classes: int,
    *,
    head: Head | str = "linear",
    hidden: int = HIDDEN,
    initialization: Initialization | str = Initialization.XAVIER,
) -> Classifier:
    inputs = math.prod(shape)
    return MLP(inputs, num_classes, hidden=hidden, head=head, initialization=initialization)


def _resnet18(
    shape: Shape, num_classes: int, *, head: Head | str = "linear", width: int = 64
) -> Classifier:
    return ResNet18(num_classes, width=width, channels=shape[0], head=head)


NETWORKS: dict[str, Callable[..., Classifier]] = {"mlp": _mlp, "resnet18": _resnet18}
"""Names on the command line. Each is called with the shape of inputs, the number of classes, `head`
and the network's own options by name."""


def default_network(dataset: str) -> str:
    """ResNet-18 for color, else the MLP."""
    return "resnet18" if dataset_spec(dataset).shape[0] == 3 else "mlp"


def build_model(
    dataset: str,
    generator: torch.Generator,
    *,
    head: Head | str = "linear",
    width: int = 64,
    initialization: Initialization | str = Initialization.XAVIER,
    network: str = "",
    options: Mapping[str, Any] | None = None,
    shape: Shape | None = None,
) -> Classifier:
    """The network of a dataset, or another one, initialized from `generator`.

    Build on the CPU, then move. `width` concerns ResNet-18 only, `initialization` the MLP; other
    options are by name. `shape` is that of the inputs, if not the dataset's.
    """
    spec, name = dataset_spec(dataset), network or default_network(dataset)
    settings: dict[str, dict[str, Any]] = {
        "resnet18": {"width": width},
        "mlp": {"initialization": initialization},
    }
    own = {**settings.get(name, {}), **(options or {})}
    with globally_seeded(generator):
        built = NETWORKS[name](shape or spec.shape, spec.num_classes, head=head, **own)
    if not isinstance(built, Classifier):
        raise ConfigError(
            f"network {name} is a {type(built).__name__}: make it a subclass of "
            "sphere_replay.vision.Classifier, which shows its features"
        )
    return built
