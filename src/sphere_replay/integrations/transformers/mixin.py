"""Replay in a trainer of transformers, or in one derived from it.

An update begins as ever. When the gradient of its last micro-batch is in `.grad`, the memories are
scored (if it is time to), some are drawn, and the gradient of their mean loss is added. Only then
is the window's stream offered to the memory. Clipping, the optimizer and all else follow as ever.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sphere_replay.integrations.transformers.callback import (
    ReplayBookkeeping,
    check_trainer,
)
from sphere_replay.integrations.transformers.session import ReplayArguments, ReplaySession

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object


class ReplayMixin(_Trainer):
    """Put it before a trainer class: `class MyTrainer(ReplayMixin, Trainer)`.

    All of replay happens in `training_step`. Of the two other overrides, `train` is the only
    place that is told which checkpoint to resume from, and `get_train_dataloader` lets the column
    of tasks through to training batches, and to no others.

    Args:
        *args: As for the trainer.
        replay: The settings, or the `replay` of an earlier trainer to go on from.
        **options: As for the trainer.
    """

    def __init__(
        self, *args: Any, replay: ReplayArguments | ReplaySession | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        check_trainer(self.args)
        if not isinstance(replay, ReplaySession):
            pad = getattr(self.processing_class, "pad_token_id", None)
            replay = ReplaySession(replay or ReplayArguments(), self._bare_model(), pad)
        self.replay = replay
        """What is remembered, and how it is replayed."""
        self._bookkeeping = ReplayBookkeeping(replay)
        # First, so that trackers and progress bars see the metrics it adds to a log.
        self.callback_handler.callbacks.insert(0, self._bookkeeping)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any
    ) -> Any:
        """Train; see `Trainer.train`."""
        self._bookkeeping.note_source(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *args, **options)

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """A micro-batch; after the last one of an update, replay."""
        field = self.replay.arguments.task_field
        tasks = None if field is None else inputs.pop(field)
        # What the trainer makes of the inputs is its own: labels may be taken out of them.
        self.replay.keep(inputs, tasks)
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            self.replay.step(self._bare_model(), self.accelerator.scaler)
        return loss

    def get_train_dataloader(self) -> Any:
        """The training batches, with their tasks if a column has them."""
        field = self.replay.arguments.task_field
        if field is None:
            return super().get_train_dataloader()
        columns = getattr(self.train_dataset, "column_names", None)
        if columns is not None and field not in columns:
            raise ValueError(
                f"task_field={field!r} is no column of the training set, which has "
                f"{', '.join(columns)}: add it, or leave task_field out"
            )
        self._set_signature_columns_if_needed()
        plain, kept = self.data_collator, vars(self)["_signature_columns"]
        vars(self).update(data_collator=_WithTasks(plain, field), _signature_columns=[*kept, field])
        try:
            return super().get_train_dataloader()
        finally:
            vars(self).update(data_collator=plain, _signature_columns=kept)

    def _bare_model(self) -> nn.Module:
        """Not the wrapper of distributed training: replay gathers gradients itself."""
        assert self.model is not None
        return self.model


class _WithTasks:
    """A collator that carries the task numbers past another, which need not know of them."""

    def __init__(self, collator: Any, field: str) -> None:
        self._collator = collator
        self._field = field

    def __call__(self, examples: list[Mapping[str, Any]]) -> dict[str, Any]:
        tasks = torch.tensor([int(example[self._field]) for example in examples])
        rest = [{k: v for k, v in example.items() if k != self._field} for example in examples]
        return {**self._collator(rest), self._field: tasks}
