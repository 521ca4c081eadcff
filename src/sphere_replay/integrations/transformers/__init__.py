"""Replay inside the trainers of transformers and TRL.

trainer = SphereTrainer(model=..., args=..., train_dataset=..., replay=ReplayArguments())
trainer.train()
"""

from typing import TYPE_CHECKING

from sphere_replay.extras import lazily
from sphere_replay.integrations.transformers.callback import SphereCallback
from sphere_replay.integrations.transformers.mixin import (
    ReplayMixin,
    SphereSeq2SeqTrainer,
    SphereTrainer,
)
from sphere_replay.integrations.transformers.session import ReplayArguments, ReplaySession
from sphere_replay.integrations.transformers.task_evaluation import EvaluationMatrix, TaskEvaluation
from sphere_replay.integrations.transformers.tasks import TaskSequence

if TYPE_CHECKING:
    from sphere_replay.integrations.transformers.sft import SphereSFTTrainer

__all__ = [
    "EvaluationMatrix",
    "ReplayArguments",
    "ReplayMixin",
    "ReplaySession",
    "SphereCallback",
    "SphereSFTTrainer",
    "SphereSeq2SeqTrainer",
    "SphereTrainer",
    "TaskEvaluation",
    "TaskSequence",
]


# It needs TRL, which the others do not.
__getattr__ = lazily(__name__, {"SphereSFTTrainer": "sft"})
