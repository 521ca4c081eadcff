"""Memory that is used again: to write to new memory takes longer than most of what is written."""

import math
import threading
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST = 1 << 20
"""Numbers that are lent, or that a thread has memory of its own for, at most."""

_OWN = threading.local()
_SPARE: deque[Tensor] = deque(maxlen=6)
"""What was lent and came back, up to 4 MiB each."""


def working(purpose: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor to write to, this thread's own until the next call for the same purpose."""
    count = math.prod(shape)
    if device.type != "cpu" or count > LARGEST:
        return torch.empty(*shape, dtype=dtype, device=device)
    held: dict[tuple[str, torch.dtype], Tensor] = _OWN.__dict__.setdefault("held", {})
    own = held.get((purpose, dtype))
    if own is None or len(own) < count:
        own = held[purpose, dtype] = _new(count, dtype)
    return own[:count].view(*shape)


class Lender:
    """Lends tensors for as long as it lives; whoever comes later gets the same memory."""

    def __init__(self) -> None:
        self._lent: list[Tensor] = []

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor to write to."""
        count = math.prod(shape)
        if device.type != "cpu" or dtype != torch.float32 or count > LARGEST:
            return torch.empty(*shape, dtype=dtype, device=device)
        try:
            held = _SPARE.pop()
        except IndexError:
            held = None
        if held is None or len(held) < count:
            held = _new(count, dtype)
        self._lent.append(held)
        return held[:count].view(*shape)

    def __del__(self) -> None:
        """Hand it on to those to come."""
        _SPARE.extend(self._lent)


def _new(count: int, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # it serves outside of it, too
        return torch.empty(count, dtype=dtype, device="cpu")
