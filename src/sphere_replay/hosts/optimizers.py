"""Optimizers that hosts learn from the stream with, as small values; memory fits have their own."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from sphere_replay.errors import ConfigError


class StreamOptimizer(Protocol):
    """Constants of an optimizer, all but its rate."""

    ADAPTIVE: ClassVar[bool]
    """Whether a virtual step must be the optimizer's own, because it does not follow gradients."""

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """An optimizer that has taken no step."""
        ...

    def constants(self) -> dict[str, Any]:
        """For a run's identity."""
        ...


@dataclass(frozen=True)
class Sgd:
    """θ - lr (momentum-averaged gradient + weight_decay θ)."""

    ADAPTIVE: ClassVar[bool] = False

    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self, below_one=("momentum",))

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """SGD of torch."""
        decay = self.weight_decay
        return torch.optim.SGD(parameters, lr=lr, momentum=self.momentum, weight_decay=decay)

    def constants(self) -> dict[str, Any]:
        """For a run's identity."""
        return {"optimizer": "SGD", **asdict(self)}


@dataclass(frozen=True)
class Adam:
    """Adam, whose weight decay is part of the gradient."""

    ADAPTIVE: ClassVar[bool] = True
    KIND: ClassVar[type[torch.optim.Adam]] = torch.optim.Adam

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self, below_one=("beta1", "beta2"))

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Adam of torch."""
        betas = (self.beta1, self.beta2)
        return self.KIND(
            parameters, lr=lr, betas=betas, eps=self.epsilon, weight_decay=self.weight_decay
        )

    def constants(self) -> dict[str, Any]:
        """For a run's identity."""
        return {"optimizer": self.KIND.__name__, **asdict(self)}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam, whose weight decay shrinks the weights themselves."""

    KIND: ClassVar[type[torch.optim.Adam]] = torch.optim.AdamW

    weight_decay: float = 0.01


OPTIMIZERS: dict[str, type[StreamOptimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
"""Names on the command line; the fields of each are its options."""


def _check(constants: Sgd | Adam, below_one: tuple[str, ...]) -> None:
    for name, value in asdict(constants).items():
        if value < 0 or (name in below_one and value >= 1):
            bounds = "in [0, 1)" if name in below_one else "at least 0"
            raise ConfigError(f"{name} must be {bounds}, got {value}")
