"""Optimizers that hosts learn from the stream with, as small values; memory fits have their own."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from sphere_replay.errors import ConfigError


@dataclass(frozen=True)
class StreamOptimizer:
    """Constants of an optimizer, all but its rate."""

    KIND: ClassVar[Callable[..., torch.optim.Optimizer]]
    """The class of torch."""
    ADAPTIVE: ClassVar[bool]
    """Whether a virtual step must be the optimizer's own, because it does not follow gradients."""
    DECAYS: ClassVar[tuple[str, ...]]
    """Constants in [0, 1); the others are at least 0."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 0 or (name in self.DECAYS and value >= 1):
                bounds = "in [0, 1)" if name in self.DECAYS else "at least 0"
                raise ConfigError(f"{name} must be {bounds}, got {value}")

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """An optimizer that has taken no step."""
        return type(self).KIND(parameters, lr=lr, **self._arguments())

    def constants(self) -> dict[str, Any]:
        """For a run's identity."""
        return {"optimizer": type(self).KIND.__name__, **asdict(self)}

    def _arguments(self) -> dict[str, Any]:
        """The constants as torch calls them."""
        return asdict(self)


@dataclass(frozen=True)
class Sgd(StreamOptimizer):
    """θ - lr (momentum-averaged gradient + weight_decay θ)."""

    KIND = torch.optim.SGD
    ADAPTIVE = False
    DECAYS = ("momentum",)

    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Adam(StreamOptimizer):
    """Adam, whose weight decay is part of the gradient."""

    KIND: ClassVar[Callable[..., torch.optim.Optimizer]] = torch.optim.Adam
    ADAPTIVE = True
    DECAYS = ("beta1", "beta2")

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def _arguments(self) -> dict[str, Any]:
        decay = self.weight_decay
        return {"betas": (self.beta1, self.beta2), "eps": self.epsilon, "weight_decay": decay}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam, whose weight decay shrinks the weights themselves."""

    KIND = torch.optim.AdamW

    weight_decay: float = 0.01


OPTIMIZERS: dict[str, type[StreamOptimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
"""Names on the command line; the fields of each are its options."""
