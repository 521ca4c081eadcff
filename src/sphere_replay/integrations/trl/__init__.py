"""Replay for GRPO inside TRL's trainer.

trainer = SphereGRPOTrainer(model=..., reward_funcs=..., args=..., train_dataset=...,
                            replay=GroupReplayArguments())
trainer.train()
"""

from typing import TYPE_CHECKING

from sphere_replay.extras import lazily
from sphere_replay.integrations.trl.arguments import GroupReplayArguments, paper_settings

if TYPE_CHECKING:
    from sphere_replay.integrations.trl.pairs import PairReplayMixin, SphereDPOTrainer
    from sphere_replay.integrations.trl.session import GroupReplay
    from sphere_replay.integrations.trl.trainer import SphereGRPOTrainer

__all__ = [
    "GroupReplay",
    "GroupReplayArguments",
    "PairReplayMixin",
    "SphereDPOTrainer",
    "SphereGRPOTrainer",
    "paper_settings",
]


# Settings need no TRL, which is slow to import.
__getattr__ = lazily(
    __name__,
    {
        "GroupReplay": "session",
        "PairReplayMixin": "pairs",
        "SphereDPOTrainer": "pairs",
        "SphereGRPOTrainer": "trainer",
    },
)
