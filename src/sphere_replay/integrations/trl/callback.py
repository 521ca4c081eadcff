"""Replay's part of a GRPO trainer's checkpoints and logs."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sphere_replay.integrations.transformers.saved import load_state, save_state
from sphere_replay.integrations.trl.session import GroupReplay


class GroupBookkeeping(TrainerCallback):
    """Starts replay with a training, and keeps it in checkpoints and logs."""

    def __init__(self, session: GroupReplay) -> None:
        self.session = session
        self.resume_from: str | None = None
        """Folder of the checkpoint to resume from; the one in `output_dir` unless given."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Continue from a checkpoint if the trainer did; its embeddings are those of the start."""
        if state.global_step:
            folder = self.resume_from or f"{args.output_dir}/checkpoint-{state.global_step}"
            self.session.load_state_dict(load_state(Path(folder), self.session.arguments))
        self.session.begin()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put replay into the checkpoint that was just written; it is the same on all processes."""
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if args.should_save and folder.is_dir():
            save_state(folder, self.session.state_dict(), self.session.arguments)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add what replay did to a log of training, for its history and the callbacks after us."""
        logs = kwargs["logs"]
        if "loss" in logs:
            metrics = self.session.metrics()
            logs.update(metrics)
            state.log_history[-1].update(metrics)
