"""GDumb: store greedily and class-balanced, learn nothing from the stream, then fit the memory.

The fit starts from the network's first weights: SGD with momentum, cosine warm restarts, gradient
clipping, CutMix on half of the batches. Its number is that of the last epoch: no epoch is chosen by
test accuracy.
"""

from dataclasses import dataclass
from typing import ClassVar

from sphere_replay.hosts.host import Batch, HostParts, Step
from sphere_replay.hosts.options import HostOptions, count, number
from sphere_replay.hosts.parts.memory_fit import MixedFit, MixedFitOptions
from sphere_replay.storage.trees import State


@dataclass(frozen=True, kw_only=True)
class GDumbOptions(MixedFitOptions):
    """Constants of GDumb, where they are not those of any fit."""

    epochs: int = count(256, least=1)
    high_lr: float = number(0.05)
    low_lr: float = number(0.0005)
    weight_decay: float = number(0.000001)
    clip: float = number(10.0)


class GDumb(MixedFit):
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

    def state_dict(self) -> State:
        """The state of a host that fits, and the weights that it starts from."""
        return super().state_dict() | {"first_weights": self._first_weights}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._first_weights = state["first_weights"]
