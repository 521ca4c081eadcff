"""Notes: what is known of each memory's features, and since when.

Training passes stream and replayed examples through the network anyway. Their features are noted by
slot, for the version that the slot then holds, and serve until they are too old.
"""

import torch
from torch import Tensor

from sphere_replay.memory import Memory
from sphere_replay.storage.trees import State


class Notes:
    """Features by slot; time is counted in draws.

    Args:
        memory: Whose slots they are about.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._now = 0
        self._features: Tensor | None = None
        self._versions = torch.full((memory.capacity,), -1)
        self._written = torch.zeros(memory.capacity, dtype=torch.int64)

    def tick(self) -> None:
        """A draw was made: everything noted is older by one."""
        self._now += 1

    def write(self, slots: Tensor, features: Tensor) -> None:
        """Note features `[n, d]` of what the slots `[n]` hold now; -1 is no slot."""
        slots = slots.cpu()
        if bool((slots < 0).any()):
            rows = (slots >= 0).nonzero().squeeze(1)
            slots, features = slots[rows], features[rows.to(features.device)]
        if self._features is None:
            shape = (self._memory.capacity, *features.shape[1:])
            self._features = torch.zeros(shape, dtype=features.dtype, device=features.device)
        self._features.index_copy_(0, slots.to(features.device), features.detach())
        self._versions[slots] = self._memory.versions.cpu()[slots]
        self._written[slots] = self._now

    def older(self, slots: Tensor, age: int) -> Tensor:
        """Which of the slots have features of more than `age` draws ago, or none; bool `[n]`."""
        known = self._memory.versions.cpu()[slots] == self._versions[slots]
        return ~known | (self._now - self._written[slots] > age)

    def read(self, slots: Tensor) -> Tensor:
        """Features `[n, d]` as noted last."""
        assert self._features is not None
        return self._features[slots.to(self._features.device)]

    def state_dict(self) -> State:
        """All notes, as copies."""
        return {
            "now": self._now,
            "features": None if self._features is None else self._features.clone(),
            "versions": self._versions.clone(),
            "written": self._written.clone(),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        noted, device = state["features"], self._memory.device
        self._now = state["now"]
        self._features = None if noted is None else noted.to(device, copy=True)
        self._versions, self._written = state["versions"].clone(), state["written"].clone()
