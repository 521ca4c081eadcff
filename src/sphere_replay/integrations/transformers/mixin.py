"""Replay in a trainer of transformers, or in one derived from it.

An update begins as ever. When the gradient of its last micro-batch is in `.grad`, the memories are
scored (if it is time to), some are drawn, and the gradient of their mean loss is added. Only then
is the window's stream offered to the memory. Clipping, the optimizer and all else follow as ever.
"""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Seq2SeqTrainer, Trainer

from sphere_replay.errors import DataError
from sphere_replay.integrations.transformers.callback import (
    ReplayBookkeeping,
    check_trainer,
    column_of,
)
from sphere_replay.integrations.transformers.session import (
    ReplayArguments,
    ReplayLike,
    ReplaySession,
    token_examples,
)
from sphere_replay.integrations.transformers.task_evaluation import TaskEvaluation, keeps_order
from sphere_replay.integrations.transformers.tasks import TASK_FIELD, adopt_tasks, disorder
from sphere_replay.integrations.transformers.zero import at_update_end, check_zero
from sphere_replay.language import Examples, Replayed

if TYPE_CHECKING:
    _Trainer = Trainer
else:
    _Trainer = object


class ReplayMixin(_Trainer):
    """Put it before a trainer class: `class MyTrainer(ReplayMixin, Trainer)`.

    All of replay happens in `training_step`. Of the other overrides, `train` is the only place
    that is told which checkpoint to resume from, `get_train_dataloader` lets the column of tasks
    through to training batches, and to no others, and `_get_train_sampler` keeps a sequence of
    tasks in its order.

    Args:
        *args: As for the trainer.
        replay: The settings, as `ReplayArguments`, a mapping or a YAML file, or the `replay` of an
            earlier trainer to go on from.
        task_metric: What tasks of a `TaskSequence` are compared by, as `compute_metrics` calls it.
        **options: As for the trainer; `train_dataset` may be a `TaskSequence`.
    """

    def __init__(
        self,
        *args: Any,
        replay: ReplayLike = None,
        task_metric: str = "loss",
        **options: Any,
    ) -> None:
        if not isinstance(replay, ReplaySession):
            replay = ReplayArguments.of(replay)  # before the trainer sets out to tokenize
        tasks, args, options = adopt_tasks(args, options, whole=False)
        super().__init__(*args, **options)
        check_trainer(self.args)
        check_zero()
        if not isinstance(replay, ReplaySession):
            replay = ReplaySession(replay, self._bare_model(), self.replay_examples())
        self.replay = replay
        """What is remembered, and how it is replayed."""
        self.replayed: Replayed | None = None
        """By the last update."""
        self.task_evaluation: TaskEvaluation | None = None
        """Evaluates a `TaskSequence` after each of its tasks."""
        if tasks is not None:
            self.task_evaluation = TaskEvaluation(tasks, task_metric).attach(self)
            self.task_evaluation.sizes = tasks.sizes(self.train_dataset)
        self._task_field = replay.arguments.task_field if tasks is None else TASK_FIELD
        self._task_names: list[str] = []
        self._bookkeeping = ReplayBookkeeping(replay)
        # First, so that trackers and progress bars see the metrics it adds to a log.
        self.callback_handler.callbacks.insert(0, self._bookkeeping)

    def replay_examples(self) -> Examples:
        """What a batch holds; for a trainer whose batches are no tokens with labels."""
        pad = getattr(self.processing_class, "pad_token_id", None)
        return token_examples(self._bare_model(), pad)

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
        field = self._task_field
        tasks = None if field is None else self._numbers(inputs.pop(field))
        # What the trainer makes of the inputs is its own: labels may be taken out of them.
        self.replay.keep(inputs, tasks)
        with at_update_end(self.accelerator, self._replay):
            return super().training_step(model, inputs, num_items_in_batch)

    def get_train_dataloader(self) -> Any:
        """The training batches, with their tasks if a column has them."""
        field = self._task_field
        if field is None:
            return super().get_train_dataloader()
        columns = getattr(self.train_dataset, "column_names", None)
        if columns is not None and field not in columns:
            raise ValueError(
                f"task_field={field!r} is no column of the training set, which has "
                f"{', '.join(columns)}: add it, or leave task_field out"
            )
        self._task_names = self._names_in(field)
        self._set_signature_columns_if_needed()
        plain, kept = self.data_collator, vars(self)["_signature_columns"]
        places = {name: place for place, name in enumerate(self._task_names)}
        collator = _WithTasks(plain, field, places)
        vars(self).update(data_collator=collator, _signature_columns=[*kept, field])
        try:
            return super().get_train_dataloader()
        finally:
            vars(self).update(data_collator=plain, _signature_columns=kept)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """The order of a sequence of tasks, whatever the arguments say."""
        evaluation = self.task_evaluation
        if evaluation is None or evaluation.sizes is None:
            return super()._get_train_sampler(train_dataset)
        return evaluation.tasks.order(evaluation.sizes)

    def _names_in(self, field: str) -> list[str]:
        """The names of the training set's tasks, in order; none if they are numbers."""
        tasks = list(column_of(self.train_dataset, field))
        shuffled = self.task_evaluation is None and not keeps_order(self.args)
        if problem := disorder(tasks, shuffled=shuffled):
            warnings.warn(problem, stacklevel=3)
        return list(dict.fromkeys(task for task in tasks if isinstance(task, str)))

    def _numbers(self, tasks: Tensor) -> Tensor:
        """Places in the list of names become the numbers that the memory knows them by."""
        if not self._task_names:
            return tasks
        # All names, each time: every process then numbers them alike, also after a resume.
        numbers = self.replay.numbered(self._task_names)
        return torch.tensor([numbers[self._task_names[int(place)]] for place in tasks])

    def _replay(self) -> None:
        self.replayed = self.replay.step(self._bare_model(), self.accelerator.scaler)

    def _bare_model(self) -> nn.Module:
        """Not the wrapper of distributed training: replay gathers gradients itself."""
        assert self.model is not None
        return self.model


class SphereTrainer(ReplayMixin, Trainer):
    """`transformers.Trainer` with replay, for decoder-only language models."""


class SphereSeq2SeqTrainer(ReplayMixin, Seq2SeqTrainer):
    """`transformers.Seq2SeqTrainer` with replay, for encoder-decoder language models."""


class _WithTasks:
    """A collator that carries tasks past another, which need not know of them.

    Numbers are carried as they are, names as their places in a list.
    """

    def __init__(self, collator: Any, field: str, places: Mapping[str, int]) -> None:
        self._collator = collator
        self._field = field
        self._places = places

    def __call__(self, examples: list[Mapping[str, Any]]) -> dict[str, Any]:
        tasks = torch.tensor([self._number(example[self._field]) for example in examples])
        rest = [{k: v for k, v in example.items() if k != self._field} for example in examples]
        return {**self._collator(rest), self._field: tasks}

    def _number(self, task: Any) -> int:
        if isinstance(task, str):
            if task not in self._places:
                raise DataError(
                    f"the task {task!r} in column {self._field!r} is a name, and names must be "
                    "known before training: pass a datasets.Dataset that is not streamed, or "
                    "number the tasks"
                )
            return self._places[task]
        if self._places:
            raise DataError(
                f"column {self._field!r} has both names and numbers, such as {task!r}: use one kind"
            )
        return int(task)
