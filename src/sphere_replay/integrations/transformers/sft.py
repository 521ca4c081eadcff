"""Supervised fine-tuning with TRL, with replay."""

from trl.trainer.sft_trainer import SFTTrainer

from sphere_replay.integrations.transformers.mixin import ReplayMixin


class SphereSFTTrainer(ReplayMixin, SFTTrainer):
    """`trl.SFTTrainer` with replay; needs `packing=False`."""
