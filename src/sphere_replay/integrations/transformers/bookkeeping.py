"""Replay's part of a trainer's checkpoints and logs, whatever is replayed.

In a checkpoint's folder it is `replay.safetensors` and `replay.json`.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sphere_replay.config import described
from sphere_replay.errors import DataError
from sphere_replay.storage.files import plain
from sphere_replay.storage.saved import load_tree, save_tree

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NAME = "replay"
CHOICE = "allow_plain_checkpoint"
"""The one setting that says how to resume, not what to replay."""


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


def save_state(folder: Path, state: Mapping[str, object], arguments: "DataclassInstance") -> None:
    """Write the state and the arguments it belongs to."""
    save_tree(folder, NAME, state, head={"arguments": _spelled(arguments)})


def load_state(folder: Path, arguments: "DataclassInstance") -> dict[str, Any] | None:
    """What `save_state` wrote, if it was for the same arguments.

    None for a checkpoint without replay, if the arguments allow to begin with an empty memory.
    """
    if not (folder / f"{NAME}.json").is_file():
        if getattr(arguments, CHOICE):
            return None
        raise DataError(
            f"{folder} holds no replay state ({NAME}.json): it was saved without replay, or the "
            f"save was cut short; resume from an earlier checkpoint, or set {CHOICE}=True to begin "
            "replay there with an empty memory"
        )
    try:
        head, state = load_tree(folder, NAME)
    except DataError as error:
        raise DataError(f"{error}; resume from an earlier checkpoint") from error
    saved, wanted = head["arguments"], plain(_spelled(arguments), "arguments")
    # Settings that mean nothing here may be younger than the checkpoint.
    unheard_of = set(getattr(arguments, "idle", ())) - saved.keys()
    different = [
        f"{name}: saved {saved.get(name)!r}, now {wanted.get(name)!r}"
        for name in sorted(saved.keys() | wanted.keys() - unheard_of)
        if saved.get(name) != wanted.get(name)
    ]
    if different:
        raise DataError(
            f"{folder} was saved with other replay arguments ({'; '.join(different)}): resume with "
            "those it was saved with, or start anew"
        )
    return state


def _spelled(arguments: "DataclassInstance") -> dict[str, Any]:
    """The settings as plain values; a selection that is an object by its class and fields."""
    values = {entry.name: getattr(arguments, entry.name) for entry in fields(arguments)}
    select = values.pop("select")
    if not isinstance(select, str):
        select = described(select) if is_dataclass(select) else type(select).__qualname__
    return {name: value for name, value in values.items() if name != CHOICE} | {"select": select}
