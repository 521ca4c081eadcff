"""FSDP2 on processors.

accelerate has FSDP for accelerators only. So here its state is set the way it sets it there, right
after it was made; everything else is the trainers' and accelerate's own: the sharding, the
optimizer's parameters, clipping, checkpoints.
"""

from typing import Any

import torch
from accelerate.state import (  # type: ignore[import-untyped]  # has no types
    AcceleratorState,
    DistributedType,
    PartialState,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def options(**more: Any) -> dict[str, Any]:
    """Training arguments of a sharded run."""
    config = {
        "version": 2,
        "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
        "state_dict_type": "SHARDED_STATE_DICT",
        "reshard_after_forward": True,
        **more,
    }
    return {"fsdp": True, "fsdp_config": config}


def allow_on_processors() -> None:
    """From now on, a plugin for FSDP is heeded on processors as well."""
    made = AcceleratorState.__init__

    def make(self: Any, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        made(self, *args, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = self.distributed_type
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = make


def spread(model: Any, unit: type[torch.nn.Module]) -> Any:
    """Shard a model before a trainer gets it."""
    for module in model.modules():
        if isinstance(module, unit):
            fully_shard(module)
    return fully_shard(model)


def sharded(model: torch.nn.Module) -> bool:
    """Every parameter is spread."""
    return all(isinstance(parameter, DTensor) for parameter in model.parameters())
