"""A sequence of tasks as one object: the stream a trainer learns, and what it is evaluated on."""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from transformers import TrainingArguments

from sphere_replay.errors import DataError
from sphere_replay.extras import require
from sphere_replay.randomness import generator_for

TASK_FIELD = "task"
"""The column of a sequence's stream that names each example's task."""
_HELD_OUT = ("validation", "test")


class TaskSequence:
    """Named datasets, learned in this order.

        tasks = TaskSequence({"ag_news": first, "sst2": second}, {"ag_news": ..., "sst2": ...})
        trainer = SphereSFTTrainer(..., train_dataset=tasks)
        trainer.train()
        print(trainer.task_evaluation.matrix)

    Args:
        train: The training set of each task, or a `DatasetDict` whose `train` it is and whose
            `validation` or `test` the task is evaluated on.
        evaluation: The evaluation set of each task, where `train` does not bring them.
        examples: How many examples of each task to learn, drawn at random; all unless given.
        passes: How often each task's examples are gone through before the next task begins.
        seed: Of the order inside a task; None keeps the order of the datasets.
    """

    def __init__(
        self,
        train: Mapping[str, Any],
        evaluation: Mapping[str, Any] | None = None,
        *,
        examples: int | None = None,
        passes: int = 1,
        seed: int | None = 0,
    ) -> None:
        if not train:
            raise DataError("a sequence needs at least one task: TaskSequence({'name': dataset})")
        for name, value in (("examples", examples), ("passes", passes)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise DataError(f"{name} must be a whole number of at least 1, got {value!r}")
        self.passes = passes
        self._examples, self._seed = examples, seed
        self._train = {name: _split(data, ("train",)) for name, data in train.items()}
        held_out = {
            name: _split(data, _HELD_OUT)
            for name, data in train.items()
            if isinstance(data, Mapping) and any(split in data for split in _HELD_OUT)
        }
        self.evaluation: dict[str, Any] = {**held_out, **(evaluation or {})}
        """The evaluation set of each task that has one."""
        self._check()

    @property
    def names(self) -> list[str]:
        """The tasks in order."""
        return list(self._train)

    def __len__(self) -> int:
        return len(self._train)

    def with_passes(self, passes: int) -> "TaskSequence":
        """The same tasks, each gone through so often."""
        other = copy.copy(self)
        other.passes = passes
        return other

    @cached_property
    def once(self) -> Any:
        """One `Dataset`: task after task, each example once, with the column `task`."""
        datasets = require("datasets", "instruct")
        parts = []
        for name, data in self._train.items():
            if TASK_FIELD in data.column_names:
                data = data.remove_columns(TASK_FIELD)
            part = data.select(self._shuffled(len(data), f"examples of {name}")[: self._examples])
            parts.append(part.add_column(TASK_FIELD, [name] * len(part)))
        return datasets.concatenate_datasets(parts)

    @property
    def stream(self) -> Any:
        """The whole stream as one `Dataset`: what a trainer sees that takes it as it comes."""
        return self.once.select(self.order(self.sizes(self.once)))

    def sizes(self, dataset: Any) -> list[int]:
        """How many examples of each task a data set has."""
        counted = Counter(dataset[TASK_FIELD])
        return [counted[name] for name in self._train]

    def order(self, sizes: Sequence[int]) -> list[int]:
        """Rows of `once` in the order of the stream; trainers may have dropped some."""
        order: list[int] = []
        start = 0
        for name, size in zip(self._train, sizes, strict=True):
            order += range(start, start + size)
            for number in range(1, self.passes):
                places = self._shuffled(size, f"pass {number} of {name}")
                order += [start + place for place in places]
            start += size
        return order

    def ends(self, sizes: Sequence[int]) -> list[int]:
        """How many examples of the stream have passed when each task ends."""
        return [self.passes * end for end in accumulate(sizes)]

    def _shuffled(self, size: int, purpose: str) -> list[int]:
        if self._seed is None:
            return list(range(size))
        order: list[int] = torch.randperm(
            size, generator=generator_for(self._seed, purpose)
        ).tolist()
        return order

    def _check(self) -> None:
        columns = None
        for name, data in self._train.items():
            if not isinstance(name, str) or not name:
                raise DataError(f"tasks are named by text, got {name!r}")
            if getattr(data, "column_names", None) is None or not hasattr(data, "select"):
                raise DataError(
                    f"task {name!r} must be a datasets.Dataset, got {type(data).__name__}: "
                    "Dataset.from_list(...) makes one of a list"
                )
            if len(data) == 0:
                raise DataError(f"task {name!r} is empty: leave it out, or fill it")
            mine = set(data.column_names) - {TASK_FIELD}
            if columns is not None and mine != columns:
                raise DataError(
                    f"task {name!r} has the columns {', '.join(sorted(mine))}, those before it "
                    f"{', '.join(sorted(columns))}: bring all tasks into one form"
                )
            columns = mine
        strangers = [name for name in self.evaluation if name not in self._train]
        if strangers:
            raise DataError(
                f"{', '.join(strangers)} would be evaluated but is no task of the sequence, which "
                f"has {', '.join(self._train)}"
            )


def passes_of(arguments: TrainingArguments) -> int:
    """How often a trainer goes through each task; it must be said in whole numbers."""
    passes = int(arguments.num_train_epochs)
    if passes != arguments.num_train_epochs or passes < 1:
        raise DataError(
            f"num_train_epochs={arguments.num_train_epochs} must be a whole number: each task of "
            "a sequence is gone through so often"
        )
    return passes


def adopt_tasks(
    args: tuple[Any, ...], options: dict[str, Any], *, whole: bool
) -> tuple[TaskSequence | None, tuple[Any, ...], dict[str, Any]]:
    """A trainer's arguments with what a sequence stands for in its place.

    Its examples become the training set, each once unless the `whole` stream is asked for, and its
    evaluation sets those of the trainer, unless it has others. `num_train_epochs` are passes over
    each task; the sequence itself is trained once.
    """
    tasks = options.get("train_dataset")
    if any(isinstance(value, TaskSequence) for value in args):
        raise TypeError("name the argument: train_dataset=TaskSequence({...})")
    if not isinstance(tasks, TaskSequence):
        return None, args, options

    def once(value: Any) -> Any:
        if not isinstance(value, TrainingArguments):
            return value
        value = copy.copy(value)
        value.num_train_epochs = 1
        return value

    found = [v for v in (*args, *options.values()) if isinstance(v, TrainingArguments)]
    if found and found[0].num_train_epochs != 1:
        tasks = tasks.with_passes(tasks.passes * passes_of(found[0]))
    options = {name: once(value) for name, value in options.items()}
    options["train_dataset"] = tasks.stream if whole else tasks.once
    if options.get("eval_dataset") is None and tasks.evaluation:
        options["eval_dataset"] = tasks.evaluation
    return tasks, tuple(map(once, args)), options


def disorder(tasks: Iterable[object], *, shuffled: bool) -> str | None:
    """Why tasks would not come one after the other, and what to do; None if they do."""
    seen: list[object] = []
    for task in tasks:
        if not seen or task != seen[-1]:
            seen.append(task)
    if len(seen) > len(set(seen)):
        return (
            f"the training set's tasks come mixed: it changes between {len(set(seen))} tasks "
            f"{len(seen) - 1} times. Sort it by task, or pass train_dataset=TaskSequence({{...}})"
        )
    if shuffled and len(seen) > 1:
        return (
            "the training set has one task after the other, but the trainer shuffles it: set "
            'train_sampling_strategy="sequential", or pass train_dataset=TaskSequence({...})'
        )
    return None


def _split(data: Any, names: tuple[str, ...]) -> Any:
    """The first of the named splits a `DatasetDict` has; anything else is a split already."""
    if not isinstance(data, Mapping):
        return data
    for name in names:
        if name in data:
            return data[name]
    raise DataError(f"a task's DatasetDict has no {names[0]!r}, only {', '.join(data)}")
