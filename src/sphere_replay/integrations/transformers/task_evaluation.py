"""Every task of a sequence evaluated after every task: what a model can do, and has forgotten."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sphere_replay.errors import DataError
from sphere_replay.extras import require
from sphere_replay.integrations.transformers.tasks import TaskSequence


@dataclass(frozen=True, eq=False)
class EvaluationMatrix:
    """An accuracy, a reward or a loss of every task after every task."""

    names: tuple[str, ...]
    values: Tensor
    """A[t, j], float64 `[T, T]`: task j after task t; NaN where it was not evaluated."""
    metric: str = "loss"
    greater_is_better: bool = False

    @classmethod
    def from_history(
        cls,
        history: Iterable[Mapping[str, Any]],
        names: Iterable[str],
        steps: Iterable[int],
        metric: str,
        *,
        greater_is_better: bool,
    ) -> "EvaluationMatrix":
        """Read from a trainer's log: `steps` are the updates after which each task has ended."""
        order, ends = tuple(names), list(steps)
        values = torch.full((len(ends), len(order)), float("nan"), dtype=torch.float64)
        for entry in history:
            for column, name in enumerate(order):
                value = evaluated(entry, name, metric)
                if value is not None:
                    for row, step in enumerate(ends):
                        if entry["step"] == step:
                            values[row, column] = value
        return cls(order, values, metric, greater_is_better)

    @property
    def learned(self) -> int:
        """Tasks after which all tasks up to them were evaluated."""
        known = [not bool(row[: i + 1].isnan().any()) for i, row in enumerate(self.values)]
        return known.index(False) if False in known else len(known)

    @property
    def average(self) -> float | None:
        """(1/T) Σ_j A[T, j] over the tasks learned so far."""
        return _mean(self._good[-1:, :].flatten() * self._sign)

    @property
    def forgetting(self) -> float | None:
        """Mean over earlier tasks of how much worse it is than it was at best; never negative."""
        if self.learned < 2:
            return None
        good = self._good
        best = good.masked_fill(torch.ones_like(good).triu(1).bool(), -torch.inf).amax(0)
        return _mean((best - good[-1])[:-1])

    @property
    def backward_transfer(self) -> float | None:
        """Mean over earlier tasks of A[T, j] - A[j, j], the other way round for a loss."""
        good = self._good
        return _mean((good[-1] - good.diagonal())[:-1]) if self.learned > 1 else None

    def summary(self) -> dict[str, float]:
        """Average, forgetting and backward transfer, as far as they are known."""
        known = {
            "average": self.average,
            "forgetting": self.forgetting,
            "backward_transfer": self.backward_transfer,
        }
        return {name: value for name, value in known.items() if value is not None}

    def __str__(self) -> str:
        """A table: a row after each task, a column for each."""
        width = max(10, *(len(name) + 2 for name in self.names))
        label = max(len(name) for name in (*self.names, self.metric)) + len("after ")
        lines = [f"{self.metric:{label}}" + "".join(f"{name:>{width}}" for name in self.names)]
        for name, row in zip(self.names, self.values.tolist(), strict=False):
            cells = (f"{'-' if cell != cell else format(cell, '.3f'):>{width}}" for cell in row)
            lines.append(f"{f'after {name}':{label}}" + "".join(cells))
        known = [f"{name.replace('_', ' ')} {v:.3f}" for name, v in self.summary().items()]
        return "\n".join([*lines, ", ".join(known)])

    def heat_map(self, file: str | Path) -> None:
        """Draw the matrix; the format is the file name's (.png, .svg, .pdf)."""
        pyplot = require("matplotlib.figure", "report")
        size = 2 + 0.8 * len(self.names)
        figure = pyplot.Figure(figsize=(size, 0.8 * size), layout="constrained")
        axes = figure.subplots()
        colors = "viridis" if self.greater_is_better else "viridis_r"
        image = axes.imshow(self.values.numpy(), cmap=colors)
        figure.colorbar(image, label=self.metric)
        axes.set_xticks(range(len(self.names)), self.names, rotation=30, ha="right")
        axes.set_yticks(range(len(self.values)), [f"after {name}" for name in self.names])
        axes.set_xlabel(
            ", ".join(f"{n.replace('_', ' ')} {v:.3f}" for n, v in self.summary().items())
        )
        for row, line in enumerate(self.values.tolist()):
            for column, value in enumerate(line):
                if value == value:
                    axes.text(
                        column,
                        row,
                        f"{value:.2f}",
                        ha="center",
                        va="center",
                        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.7},
                    )
        figure.savefig(file, dpi=150)

    @property
    def _sign(self) -> int:
        return 1 if self.greater_is_better else -1

    @property
    def _good(self) -> Tensor:
        """The square part of the tasks learned so far, greater is better."""
        return self.values[: self.learned, : self.learned] * self._sign


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


def evaluated(entry: Mapping[str, Any], name: str, metric: str) -> float | None:
    """A task's metric in an entry of a trainer's log; None if the entry is of something else.

    Trainers of TRL put their own metrics, such as rewards, under `eval_` without the task's name.
    """
    if f"eval_{name}_runtime" not in entry:
        return None
    value = entry.get(f"eval_{name}_{metric}", entry.get(f"eval_{metric}"))
    return None if value is None else float(value)


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if values.numel() else None
