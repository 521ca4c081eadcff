"""When each slot of a memory was last written, so that few changes are found among many slots."""

import torch
from torch import Tensor

_BLOCK = 128
"""Slots that are looked through together."""


class Stamps:
    """The number of the last write to each of `capacity` slots, on the CPU."""

    def __init__(self, capacity: int) -> None:
        blocks = -(-capacity // _BLOCK)
        self._of_slots = torch.zeros((blocks, _BLOCK), dtype=torch.int64, device="cpu")
        self._of_blocks = torch.zeros(blocks, dtype=torch.int64, device="cpu")
        """The latest of each block."""

    def put(self, slots: Tensor, write: int) -> None:
        """These slots were written, by a write that is later than all before."""
        self._of_slots.view(-1)[slots] = write
        self._of_blocks[slots // _BLOCK] = write

    def put_all(self, write: int) -> None:
        """Every slot was written."""
        self._of_slots.fill_(write)
        self._of_blocks.fill_(write)

    def after(self, write: int) -> Tensor:
        """Slots, ascending, whose last write came after this one; int64."""
        blocks = (self._of_blocks > write).nonzero().squeeze(1)
        block, place = (self._of_slots[blocks] > write).nonzero(as_tuple=True)
        return blocks[block] * _BLOCK + place
