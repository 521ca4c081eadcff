"""Notes: what is known of each memory's features, and since when.

Training passes stream and replayed examples through the network anyway. Their features are noted by
slot, for the version that the slot then holds, and serve until they are too old.
"""

import torch
from torch import Tensor

from sphere_replay.memory import Memory
from sphere_replay.storage.trees import State


class Notes:
    """Features and class numbers by slot; time is counted in draws.

    Args:
        memory: Whose slots they are about.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._now = 0
        self._features: Tensor | None = None
        self._labels: Tensor | None = None
        self._versions = torch.full((memory.capacity,), -1)
        self._written = torch.zeros(memory.capacity, dtype=torch.int64)

    def tick(self) -> None:
        """A draw was made: everything noted is older by one."""
        self._now += 1

    def write(self, slots: Tensor, features: Tensor, labels: Tensor | None = None) -> None:
        """Note what the slots `[n]` hold now: features `[n, d]`, class numbers `[n]` if there are.

        A slot of -1 is none: its row is left out.
        """
        slots = slots.cpu()
        if bool((slots < 0).any()):
            rows = (slots >= 0).nonzero().squeeze(1)
            slots, features = slots[rows], features[rows.to(features.device)]
            labels = None if labels is None else labels[rows.to(labels.device)]
        self._features = self._put(self._features, slots, features.detach())
        if labels is not None:
            self._labels = self._put(self._labels, slots, labels)
        self._versions[slots] = self._memory.versions.cpu()[slots]
        self._written[slots] = self._now

    def older(self, slots: Tensor, age: int) -> Tensor:
        """Which of the slots have features of more than `age` draws ago, or none; bool `[n]`."""
        known = self._memory.versions.cpu()[slots] == self._versions[slots]
        return ~known | (self._now - self._written[slots] > age)

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features `[n, d]` and class numbers `[n]`, as noted last."""
        assert self._features is not None
        places = slots.to(self._features.device)
        return self._features[places], None if self._labels is None else self._labels[places]

    def state_dict(self) -> State:
        """All notes, as copies."""
        noted = {"features": self._features, "labels": self._labels}
        return {
            "now": self._now,
            "versions": self._versions.clone(),
            "written": self._written.clone(),
            **{name: None if kept is None else kept.clone() for name, kept in noted.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        device = self._memory.device
        self._now = state["now"]
        self._versions, self._written = state["versions"].clone(), state["written"].clone()
        self._features, self._labels = (
            None if state[name] is None else state[name].to(device, copy=True)
            for name in ("features", "labels")
        )

    def _put(self, kept: Tensor | None, slots: Tensor, values: Tensor) -> Tensor:
        if kept is None:
            shape = (self._memory.capacity, *values.shape[1:])
            kept = torch.zeros(shape, dtype=values.dtype, device=values.device)
        return kept.index_copy_(0, slots.to(kept.device), values)
