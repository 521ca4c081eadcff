"""Replay's part in the course of a GRPO training."""

from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from sphere_replay.integrations.transformers.bookkeeping import Bookkeeping
from sphere_replay.integrations.trl.session import GroupReplay


class GroupBookkeeping(Bookkeeping):
    """Starts replay with a training, and keeps it in checkpoints and logs."""

    def __init__(self, session: GroupReplay) -> None:
        super().__init__(session)
        self._replay = session

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Continue from a checkpoint if the trainer did; its embeddings are those of the start."""
        self.restore(args, state)
        self._replay.begin()
