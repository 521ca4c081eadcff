"""Reservoir sampling: at any time the memory is a uniform sample of everything offered so far."""

from typing import ClassVar

import torch
from torch import Tensor

from sphere_replay.memory.admission import Offer
from sphere_replay.memory.state import check_keys
from sphere_replay.storage.trees import State


class Reservoir:
    """Vitter's algorithm R, whole batches at a time.

    The row at stream position n (from 0) takes slot n while n < K. Afterwards it draws j uniformly
    from {0, ..., n} and takes slot j if j < K, so that each of the first n + 1 rows is in memory
    with probability K / (n + 1).
    """

    name: ClassVar[str] = "reservoir"
    draws: ClassVar[bool] = True

    def place(self, offer: Offer) -> Tensor:
        """The slot of each row; decisions depend on seed and stream position alone."""
        first, last = offer.seen, offer.seen + offer.count
        options = torch.arange(first + 1, last + 1, dtype=torch.float64, device="cpu")
        slots = (offer.uniforms * options).long()
        if first < offer.capacity:
            until = min(last, offer.capacity)
            slots[: until - first] = torch.arange(first, until, device="cpu")
        return slots.masked_fill_(slots >= offer.capacity, -1)

    def state_dict(self) -> State:
        """Empty: the memory's generator and its count of seen rows are all there is."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Check that there is nothing to load."""
        check_keys(state, (), owner="a reservoir's state")
