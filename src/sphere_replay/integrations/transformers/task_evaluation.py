"""A callback that has every task of a sequence evaluated after every task."""

import warnings
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sphere_replay.errors import DataError
from sphere_replay.integrations.transformers.matrix import EvaluationMatrix, evaluated
from sphere_replay.integrations.transformers.tasks import TaskSequence


class TaskEvaluation(TrainerCallback):
    """Evaluates after each task, and adds average, forgetting and backward transfer to the log.

    The trainers of this package have one when they train on a `TaskSequence`. For others:

        trainer = Trainer(..., train_dataset=tasks.stream, eval_dataset=tasks.evaluation)
        evaluation = TaskEvaluation(tasks).attach(trainer)
        trainer.train()
        print(evaluation.matrix)

    Nothing is kept here: the matrix is read from the trainer's log, so it survives a resume.

    Args:
        tasks: The sequence.
        metric: What `compute_metrics` calls it; the loss unless given.
        greater_is_better: False for losses, true for all else, unless given.
    """

    def __init__(
        self, tasks: TaskSequence, metric: str = "loss", *, greater_is_better: bool | None = None
    ) -> None:
        self.tasks = tasks
        self.metric = metric
        if greater_is_better is None:
            greater_is_better = not metric.endswith("loss")
        self.greater_is_better = greater_is_better
        self.sizes: list[int] | None = None
        """Examples of each task, from a trainer that is known to keep the sequence's order."""
        self._warned = False
        self._steps: list[int] = []
        self._history: list[dict[str, Any]] = []

    def attach(self, trainer: Any) -> "TaskEvaluation":
        """Put it before the trainer's trackers, so that they hear of what it adds to a log."""
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    @property
    def matrix(self) -> EvaluationMatrix:
        """What has been evaluated so far; a row after each task."""
        return EvaluationMatrix.from_history(
            self._history,
            self.tasks.names,
            self._steps,
            self.metric,
            greater_is_better=self.greater_is_better,
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Find the updates after which tasks end."""
        if self.sizes is None and not keeps_order(args):
            raise DataError(
                "a sequence of tasks must not be shuffled: set "
                'train_sampling_strategy="sequential" (shuffle_dataset=False for GRPO)'
            )
        rows = args.train_batch_size * args.world_size * args.gradient_accumulation_steps
        rows //= getattr(args, "num_generations", None) or 1  # GRPO repeats each prompt
        ends = self.tasks.ends(self.sizes or self.tasks.sizes(self.tasks.once))
        seen = getattr(kwargs["train_dataloader"], "dataset", ())
        if self.sizes is None and len(seen) != ends[-1]:
            raise DataError(
                f"the training set has {len(seen)} examples, the sequence {ends[-1]}: pass "
                "train_dataset=tasks.stream; if the trainer has dropped some, use one of this "
                "package, which can tell them apart"
            )
        steps = [-(-end // rows) for end in ends]
        if state.max_steps > steps[-1]:
            raise DataError(
                f"{state.max_steps} updates of {rows} examples would begin the sequence again "
                f"after {steps[-1]}: leave max_steps out, and say by TaskSequence(passes=...) how "
                "often to go through each task (trainers of this package take num_train_epochs)"
            )
        if state.max_steps >= ends[-1] // rows:
            # An incomplete last batch has been dropped: the sequence ends one update earlier.
            steps = [min(step, state.max_steps) for step in steps]
        self._steps, self._history = steps, state.log_history

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A task has ended: have the trainer evaluate."""
        if state.global_step in self._steps and self.tasks.evaluation:
            control.should_evaluate = True

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add the summary when all tasks of a row have been evaluated."""
        self._history, logs = state.log_history, kwargs["logs"]
        if state.global_step not in self._steps:
            return
        now = [entry for entry in self._history if entry["step"] == state.global_step]
        self._check_metric(logs)
        missing = set(self.tasks.evaluation)
        for entry in now:
            missing -= {name for name in missing if evaluated(entry, name, self.metric) is not None}
        if not missing and any(f"eval_{name}_runtime" in logs for name in self.tasks.evaluation):
            added = {f"eval_{name}": value for name, value in self.matrix.summary().items()}
            logs.update(added)
            state.log_history[-1].update(added)

    def _check_metric(self, logs: Mapping[str, Any]) -> None:
        """Say once that an evaluation has not given what the matrix is made of."""
        for name in self.tasks.evaluation:
            known = f"eval_{name}_runtime" not in logs or evaluated(logs, name, self.metric)
            if known is None and not self._warned:
                self._warned = True
                given = [key.removeprefix(f"eval_{name}_") for key in logs if key[:5] == "eval_"]
                warnings.warn(
                    f"the evaluation of {name} gives no {self.metric!r}, only {', '.join(given)}: "
                    "the matrix of tasks stays empty; set task_metric to one of these",
                    stacklevel=2,
                )


def keeps_order(args: TrainingArguments) -> bool:
    """Whether a trainer with these arguments takes its training set as it comes."""
    if hasattr(args, "shuffle_dataset"):
        return not args.shuffle_dataset
    return bool(args.train_sampling_strategy == "sequential")
