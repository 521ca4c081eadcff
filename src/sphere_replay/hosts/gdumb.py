"""GDumb: store greedily and class-balanced, learn nothing from the stream, then fit the memory.

The fit starts from the network's first weights: SGD with momentum, cosine warm restarts, gradient
clipping, CutMix on half of the batches. Its number is that of the last epoch: no epoch is chosen by
test accuracy.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sphere_replay.hosts.host import Batch, HostParts, Step
from sphere_replay.hosts.options import HostOptions, count, number, share
from sphere_replay.hosts.parts.cutmix import cutmix_sometimes, mixed_cross_entropy
from sphere_replay.hosts.parts.memory_fit import FitOptions, MemoryFit
from sphere_replay.storage.trees import State


@dataclass(frozen=True, kw_only=True)
class GDumbOptions(FitOptions):
    """Constants of GDumb, where they are not those of any fit."""

    epochs: int = count(256, least=1)
    high_lr: float = number(0.05)
    low_lr: float = number(0.0005)
    weight_decay: float = number(0.000001)
    clip: float = number(10.0)
    cutmix: float = share(0.5)
    """Probability that a batch is mixed."""


class GDumb(MemoryFit):
    """GDumb on whatever the memory admits; pair it with greedy balanced admission.

    With `fit_last_only`, as the paper's AAA column implies, accuracy is at chance before.
    """

    REPLAYS = False
    OPTIONS: ClassVar[type[HostOptions]] = GDumbOptions
    options: GDumbOptions
    FIRST_RATE: ClassVar[int] = 0

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        self._first_weights = {
            name: value.clone() for name, value in self.network.state_dict().items()
        }

    def observe(self, batch: Batch) -> Step:
        """Only remember."""
        self.remember(batch)
        return Step(0.0)

    def _begin_fit(self) -> None:
        super()._begin_fit()
        self.network.load_state_dict(self._first_weights)

    def _epoch(self, step: int) -> Step:
        batches = self._batches(self._shuffled(torch.arange(len(self.memory))))
        losses = [self._update(self._loss(rows), len(rows)) for rows in batches]
        return Step(sum(losses) / len(losses))

    def _loss(self, rows: Tensor) -> Tensor:
        chosen, source = self.memory.take(rows), self.parts.augmentation
        views = self.view(chosen["x"])
        mixed = cutmix_sometimes(views, chosen["y"], source, self.options.cutmix)
        return mixed_cross_entropy(self.run(mixed.images), mixed)

    def state_dict(self) -> State:
        """The state of a host that fits, and the weights that it starts from."""
        return super().state_dict() | {"first_weights": self._first_weights}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._first_weights = state["first_weights"]
