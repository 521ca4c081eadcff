"""The trainers of transformers, with replay."""

from transformers import Seq2SeqTrainer, Trainer

from sphere_replay.integrations.transformers.mixin import ReplayMixin


class SphereTrainer(ReplayMixin, Trainer):
    """`transformers.Trainer` with replay, for decoder-only language models."""


class SphereSeq2SeqTrainer(ReplayMixin, Seq2SeqTrainer):
    """`transformers.Seq2SeqTrainer` with replay, for encoder-decoder language models."""
