"""Optimizers that hosts learn from the stream with, as small values; memory fits have their own."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from sphere_replay.hosts.options import Options, decay, number


@dataclass(frozen=True, kw_only=True)
class StreamOptimizer(Options):
    """Constants of an optimizer, all but its rate."""

    KIND: ClassVar[Callable[..., torch.optim.Optimizer]]
    """The class of torch."""
    ADAPTIVE: ClassVar[bool]
    """Whether a virtual step must be the optimizer's own, because it does not follow gradients."""

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """An optimizer that has taken no step."""
        return type(self).KIND(parameters, lr=lr, **self._arguments())

    def constants(self) -> dict[str, Any]:
        """For a run's identity."""
        return {"optimizer": type(self).KIND.__name__, **asdict(self)}

    def _arguments(self) -> dict[str, Any]:
        """The constants as torch calls them."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Sgd(StreamOptimizer):
    """θ - lr (momentum-averaged gradient + weight_decay θ)."""

    KIND = torch.optim.SGD
    ADAPTIVE = False

    momentum: float = decay(0.0)
    weight_decay: float = number(0.0)


@dataclass(frozen=True, kw_only=True)
class Adam(StreamOptimizer):
    """Adam, whose weight decay is part of the gradient."""

    KIND: ClassVar[Callable[..., torch.optim.Optimizer]] = torch.optim.Adam
    ADAPTIVE = True

    beta1: float = decay(0.9)
    beta2: float = decay(0.999)
    epsilon: float = number(1e-8)
    weight_decay: float = number(0.0)

    def _arguments(self) -> dict[str, Any]:
        betas, shrink = (self.beta1, self.beta2), self.weight_decay
        return {"betas": betas, "eps": self.epsilon, "weight_decay": shrink}


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam, whose weight decay shrinks the weights themselves."""

    KIND = torch.optim.AdamW

    weight_decay: float = number(0.01)


OPTIMIZERS: dict[str, type[StreamOptimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
"""Names on the command line; the fields of each are its options."""
