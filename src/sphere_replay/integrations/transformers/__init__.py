"""Replay inside the trainers of transformers and TRL.

trainer = SphereTrainer(model=..., args=..., train_dataset=..., replay=ReplayArguments())
trainer.train()
"""

from typing import TYPE_CHECKING, Any

from sphere_replay.integrations.transformers.callback import SphereCallback
from sphere_replay.integrations.transformers.matrix import EvaluationMatrix
from sphere_replay.integrations.transformers.mixin import ReplayMixin
from sphere_replay.integrations.transformers.session import ReplayArguments, ReplaySession
from sphere_replay.integrations.transformers.task_evaluation import TaskEvaluation
from sphere_replay.integrations.transformers.tasks import TaskSequence
from sphere_replay.integrations.transformers.trainers import SphereSeq2SeqTrainer, SphereTrainer

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


def __getattr__(name: str) -> Any:
    """`SphereSFTTrainer` needs TRL, which the others do not: import it when it is asked for."""
    if name == "SphereSFTTrainer":
        from sphere_replay.integrations.transformers.sft import SphereSFTTrainer

        return SphereSFTTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
