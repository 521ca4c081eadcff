"""The sharded example as accelerate launches it, on processors."""

import runpy
import sys

import torch

from integrations import fsdp
from integrations.pairs import leave
from sphere_replay.integrations.transformers import SphereSFTTrainer

torch.set_num_threads(1)
fsdp.allow_on_processors()
train = SphereSFTTrainer.train


def train_sharded(self: SphereSFTTrainer) -> None:
    train(self)
    assert self.model is not None
    assert fsdp.sharded(self.model)


SphereSFTTrainer.train = train_sharded  # type: ignore[method-assign]  # asks a question more
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
leave()
