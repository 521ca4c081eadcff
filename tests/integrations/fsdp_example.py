"""The sharded example as accelerate launches it, on processors."""

import runpy
import sys
from typing import Any

import torch

from integrations import fsdp
from integrations.pairs import leave
from sphere_replay.integrations.transformers import SphereSFTTrainer
from sphere_replay.scoring import is_sharded

torch.set_num_threads(1)
fsdp.allow_on_processors()
Trainer: Any = SphereSFTTrainer
save_model = Trainer.save_model


def save_sharded(self: Any, *args: Any, **options: Any) -> None:
    assert is_sharded(self.model)
    save_model(self, *args, **options)


Trainer.save_model = save_sharded
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
leave()
