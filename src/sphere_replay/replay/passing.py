"""What training computes of memories in passing: features and losses, with their age.

A replayed example goes through the model anyway, and so does one of the stream before it is
admitted. At a rescoring soon after, what came out stands for a forward pass of its own, if that
would compute the same: in training mode batch norm sees the batch, and dropout draws.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from sphere_replay.memory import Memory
from sphere_replay.storage.trees import State


class Known(NamedTuple):
    """What was computed of some of the memories that were asked for."""

    places: Tensor
    """Which of them, int64 `[n]`, ascending."""
    features: Tensor
    """h `[n, d]`."""
    losses: Tensor
    """`[n]`."""


def alike_in_training(model: nn.Module) -> bool:
    """Whether a model computes the same in training as in evaluation: no batch norm, no dropout."""
    return not any(map(_differs, model.modules()))


def _differs(module: nn.Module) -> bool:
    if isinstance(module, _NormBase | _DropoutNd):
        return isinstance(module, _NormBase) or module.p > 0
    # Attention, recurrent layers and residual paths drop by rates of their own.
    rates = (value for name, value in vars(module).items() if "drop" in name)
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


class _Batch(NamedTuple):
    draws: int
    """How many draws there had been."""
    slots: Tensor
    versions: Tensor
    features: Tensor
    losses: Tensor


class Passing:
    """Features and losses of the examples that training passed lately.

    Args:
        memory: Whose slots these examples are in.
        longest: Draws after which they are forgotten.
    """

    def __init__(self, memory: Memory, longest: int) -> None:
        self._memory = memory
        self._longest = longest
        self._draws = 0
        self._batches: list[_Batch] = []

    def note(self, slots: Tensor, features: Tensor, losses: Tensor) -> None:
        """Features `[n, d]` and losses `[n]` of the examples in these slots; -1 is in none."""
        if features.ndim != 2 or not len(slots) == len(features) == len(losses):
            raise ValueError(
                f"{len(slots)} slots need a row of features and a loss each, got features "
                f"{list(features.shape)} and losses {list(losses.shape)}"
            )
        slots, features, losses = slots.cpu(), features.detach(), losses.detach()
        stored = (slots >= 0).nonzero()[:, 0]
        if len(stored) < len(slots):
            slots = slots[stored]
            features = features.index_select(0, stored.to(features.device))
            losses = losses.index_select(0, stored.to(losses.device))
        versions = self._memory.versions_of(slots)
        self._batches.append(_Batch(self._draws, slots, versions, features, losses))

    def count(self) -> None:
        """A draw was made."""
        self._draws += 1
        self._batches = [
            batch for batch in self._batches if batch.draws > self._draws - self._longest
        ]

    def known(self, slots: Tensor) -> Known | None:
        """The latest of what is known of the memories in these slots `[m]`; None: nothing is."""
        if not self._batches:
            return None
        device = self._batches[-1].features.device
        noted = torch.cat([batch.slots for batch in self._batches])
        versions = torch.cat([batch.versions for batch in self._batches])
        features = torch.cat([batch.features.to(device) for batch in self._batches])
        losses = torch.cat([batch.losses.to(device) for batch in self._batches])
        # What is not finite is left to a pass of its own, which says so.
        sound = (features.isfinite().all(dim=1) & losses.isfinite()).cpu()
        rows = (sound & ~self._memory.changed(versions, noted)).nonzero()[:, 0]
        latest = torch.full((self._memory.capacity,), -1, device="cpu")
        latest.scatter_reduce_(0, noted[rows], rows, "amax")
        found = latest[slots.cpu()]
        places = (found >= 0).nonzero()[:, 0]
        if len(places) == 0:
            return None
        chosen = found[places].to(device)
        return Known(places, features[chosen], losses[chosen])

    def state_dict(self) -> State:
        """All that is known."""
        return {
            "draws": self._draws,
            "batches": [batch._asdict() for batch in self._batches],
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken, on the memory of that moment."""
        self._draws = state["draws"]
        self._batches = [_Batch(**batch) for batch in state["batches"]]
