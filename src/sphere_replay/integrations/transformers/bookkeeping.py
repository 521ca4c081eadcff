"""Replay's part of a trainer's checkpoints and logs, whatever is replayed."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sphere_replay.integrations.transformers.saved import load_state, save_state

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Session(Protocol):
    """Replay over the updates of a training."""

    @property
    def arguments(self) -> "DataclassInstance":
        """The settings; a checkpoint is of no use under others."""
        ...

    def metrics(self) -> dict[str, float]:
        """For the trainer's log, since the last one."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything the next update depends on."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        ...


SessionT = TypeVar("SessionT", bound=Session)


class Bookkeeping(TrainerCallback, Generic[SessionT]):
    """Keeps a session in checkpoints and logs."""

    def __init__(self, session: SessionT) -> None:
        self.session = session
        self.resume_from: str | None = None
        """Folder of the checkpoint to resume from; the one in `output_dir` unless given."""

    def note_source(self, resume_from_checkpoint: str | bool | None) -> None:
        """Hear what `train` was told: a folder, or whether to resume from the last checkpoint."""
        last = resume_from_checkpoint is None or isinstance(resume_from_checkpoint, bool)
        self.resume_from = None if last else str(resume_from_checkpoint)

    def restore(self, args: TrainingArguments, state: TrainerState) -> None:
        """Continue from a checkpoint if the trainer did."""
        if state.global_step:
            folder = self.resume_from or f"{args.output_dir}/checkpoint-{state.global_step}"
            saved = load_state(Path(folder), self.session.arguments)
            if saved is not None:
                self.session.load_state_dict(saved)

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
            metrics = {f"replay/{name}": v for name, v in self.session.metrics().items()}
            logs.update(metrics)
            state.log_history[-1].update(metrics)
