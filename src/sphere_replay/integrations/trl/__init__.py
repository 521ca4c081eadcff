"""Replay for GRPO inside TRL's trainer.

trainer = SphereGRPOTrainer(model=..., reward_funcs=..., args=..., train_dataset=...,
                            replay=GroupReplayArguments())
trainer.train()
"""

from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    """Settings need no TRL, which is slow to import: import it when the trainer is asked for."""
    if name == "SphereGRPOTrainer":
        from sphere_replay.integrations.trl.trainer import SphereGRPOTrainer

        return SphereGRPOTrainer
    if name in ("PairReplayMixin", "SphereDPOTrainer"):
        from sphere_replay.integrations.trl import pairs

        return getattr(pairs, name)
    if name == "GroupReplay":
        from sphere_replay.integrations.trl.session import GroupReplay

        return GroupReplay
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
