"""Models whose parameters are spread over processes by FSDP2 (`fully_shard`).

Every process holds a shard of each parameter, its gradient and its optimizer state. An update is
made element by element, so each can take its part of a virtual step by itself. A forward gathers
the whole parameters, and may keep them: whoever moves the shards must have the copies dropped.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 spreads the model over processes."""
    return any(True for _ in _sharded_modules(model))


@contextmanager
def resharded(model: nn.Module) -> Iterator[None]:
    """No module holds gathered parameters when the block begins and after it has ended."""
    _reshard(model)
    try:
        yield
    finally:
        _reshard(model)


def local_parts(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What this process holds of each; writing to it writes to the tensor."""
    with torch.no_grad():
        return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def _reshard(model: nn.Module) -> None:
    for module in _sharded_modules(model):
        module.reshard()


def _sharded_modules(model: nn.Module) -> Iterator[Any]:
    # Whoever shards a model has imported it; nobody else should pay for it.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)  # newer than the oldest torch that will do
    if kind is not None:
        yield from (module for module in model.modules() if isinstance(module, kind))
