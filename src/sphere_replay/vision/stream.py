"""The stream of a run: which examples come when, under which label.

Classes are ordered at random and renamed by that order, so that task 0 has the ids 0..k-1, task 1
the next k, and so on: ids increase with first appearance, which the losses of several hosts rely
on. Labels are corrupted first; then the stream is split by the corrupted label, so every training
label of a task lies in the task's own classes. Test examples belong to the task of their clean
label.

Streams of other kinds are made of the same parts. In a domain-incremental one every task asks the
same question of other classes: a label is the class's place in its task. In a blurred one a share
of each class comes in tasks that are not its own. In an imbalanced one classes are of different
size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor

from sphere_replay.errors import DataError
from sphere_replay.randomness import generator_for
from sphere_replay.storage.files import write_atomically
from sphere_replay.storage.trees import fingerprint, to_bytes
from sphere_replay.vision.datasets import ImageData, dataset_spec
from sphere_replay.vision.noise import LOOKALIKES, NoiseKind, corrupt


class SplitBy(StrEnum):
    """Which label decides the task of a training example."""

    NOISY = "noisy"
    CLEAN = "clean"
    """Training labels then leave the classes of their task when noise crosses tasks."""


class Scenario(StrEnum):
    """What a task brings that is new."""

    CLASS = "class"
    DOMAIN = "domain"
    """Other classes under the labels of the first task: its places 0..k-1."""


@dataclass(frozen=True, eq=False)
class ClassStream:
    """A stream of T tasks over C classes; all labels are ids of this stream, see `class_order`."""

    class_order: Tensor
    """`[C]`: `class_order[id]` is the dataset's own label of a class."""
    labels: Tensor
    """`[n]`: the noisy label of every training example, the one a learner sees."""
    clean_labels: Tensor
    """`[n]`: the true labels; for logging only."""
    test_labels: Tensor
    """`[n_test]`: clean."""
    train_indices: tuple[Tensor, ...]
    """Per task: examples of the training data, in the order of the stream."""
    test_indices: tuple[Tensor, ...]
    """Per task: examples of the test data, of the classes that are the task's own."""
    domains: bool = False
    """Whether labels, clean ones too, are places in a task; test labels are ids nevertheless."""
    blurred: bool = False
    """Whether classes come outside of their tasks as well."""

    def __len__(self) -> int:
        """Number of training examples in the stream."""
        return sum(map(len, self.train_indices))

    @property
    def num_classes(self) -> int:
        """C, over all tasks."""
        return len(self.class_order)

    @property
    def tasks(self) -> tuple[range, ...]:
        """The class ids of each task: consecutive, and increasing from task to task."""
        size = self.num_classes // len(self.train_indices)
        return tuple(range(start, start + size) for start in range(0, self.num_classes, size))

    def batches(self, task: int, batch_size: int, *, drop_last: bool = False) -> Iterator[Tensor]:
        """Training indices of a task, `batch_size` at a time; the last batch may be smaller.

        `drop_last` leaves a smaller one out, unless it is the only one.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        parts = torch.split(self.train_indices[task], batch_size)
        short = len(parts) > 1 and len(parts[-1]) < batch_size
        yield from parts[:-1] if drop_last and short else parts

    @property
    def digest(self) -> str:
        """SHA-256 of labels and order: two runs with equal digests saw the same stream."""
        return fingerprint(self.to_tensors())

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything as flat named tensors, ready for safetensors."""
        # Only where they hold: what has been saved without them keeps its digest.
        kinds = {name: torch.ones(1) for name in _KINDS if getattr(self, name)}
        return kinds | {
            "class_order": self.class_order,
            "labels": self.labels,
            "clean_labels": self.clean_labels,
            "test_labels": self.test_labels,
            "train_indices": torch.cat(self.train_indices),
            "train_sizes": torch.tensor([len(task) for task in self.train_indices]),
            "test_indices": torch.cat(self.test_indices),
            "test_sizes": torch.tensor([len(task) for task in self.test_indices]),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "ClassStream":
        """The inverse of `to_tensors`."""
        names = ("class_order", "labels", "clean_labels", "test_labels")
        parts = ("train_indices", "train_sizes", "test_indices", "test_sizes")
        missing = [name for name in (*names, *parts) if name not in tensors]
        if missing:
            raise ValueError(f"these tensors are not a saved stream: {', '.join(missing)} missing")
        return cls(
            class_order=tensors["class_order"],
            labels=tensors["labels"],
            clean_labels=tensors["clean_labels"],
            test_labels=tensors["test_labels"],
            domains="domains" in tensors,
            blurred="blurred" in tensors,
            train_indices=torch.split(tensors["train_indices"], tensors["train_sizes"].tolist()),
            test_indices=torch.split(tensors["test_indices"], tensors["test_sizes"].tolist()),
        )


_KINDS = ("domains", "blurred")


def build_stream(
    data: ImageData,
    seed: int,
    *,
    noise: float = 0.0,
    noise_kind: NoiseKind | str = NoiseKind.SYMMETRIC,
    split_by: SplitBy | str = SplitBy.NOISY,
    tasks: int | None = None,
    shuffle_classes: bool = True,
    limit: int | None = None,
    scenario: Scenario | str = Scenario.CLASS,
    blur: float = 0.0,
    imbalance: float = 1.0,
) -> ClassStream:
    """The stream of a seed.

    Class order, corruption and stream order come from random streams of their own: another noise
    rate leaves the class order and the relative order of the examples unchanged.

    Args:
        data: Images with clean labels.
        seed: Seed of the run.
        noise: Rate rho in [0, 1).
        noise_kind: Which labels are corrupted, and to what.
        split_by: The label that decides the task of a training example.
        tasks: Number of tasks; default: the dataset's own.
        shuffle_classes: False keeps the dataset's order of classes.
        limit: Keep this many examples. Every task keeps its first ones, in proportion to its
            length and at least one, so that a short run still visits all tasks.
        scenario: Domain-incremental tasks are those of the true classes, and noise stays among the
            labels that all tasks share.
        blur: Share of each class, by the label that decides the task, that comes in other tasks,
            in all of them alike.
        imbalance: How many times larger the dataset's first class is than its last; sizes between
            them fall geometrically. Noise is a share of what is left of each class.
    """
    classes = data.num_classes
    count = dataset_spec(data.name).tasks if tasks is None else tasks
    if not 1 <= count <= classes or classes % count:
        raise DataError(
            f"{classes} classes of {data.name} do not split into {count} equal tasks; "
            f"possible: {', '.join(str(n) for n in range(1, classes + 1) if classes % n == 0)}"
        )
    split_by = SplitBy(split_by)
    order = torch.arange(classes)
    if shuffle_classes:
        order = torch.randperm(classes, generator=generator_for(seed, "class order"))
    rename = order.argsort()
    task_size = classes // count
    own, test = rename[data.train_labels], rename[data.test_labels]
    domains = Scenario(scenario) is Scenario.DOMAIN
    clean = own % task_size if domains else data.train_labels
    kept = torch.arange(len(clean))
    if imbalance != 1:
        kept = _long_tailed(data.train_labels, classes, imbalance, generator_for(seed, "imbalance"))
    labels = clean.clone()
    labels[kept] = corrupt(
        clean[kept],
        noise,
        task_size if domains else classes,
        generator_for(seed, "corruption"),
        noise_kind,
        LOOKALIKES.get(data.name),
    )
    if not domains:
        labels, clean = rename[labels], own
    deciding = labels if split_by is SplitBy.NOISY and not domains else own
    train_task = deciding // task_size
    if blur:
        source = generator_for(seed, "blur")
        train_task = _blurred(deciding, kept, blur, count, task_size, source)
    # One shuffle of everything, of which each task takes its own: a uniform order in every task.
    shuffled = torch.randperm(len(labels), generator=generator_for(seed, "stream order"))
    left = torch.zeros(len(labels), dtype=torch.bool)
    left[kept] = True
    shuffled = shuffled[left[shuffled]]
    train_indices = [shuffled[train_task[shuffled] == task] for task in range(count)]
    lengths = _shortened([len(indices) for indices in train_indices], limit)
    return ClassStream(
        class_order=order,
        labels=labels,
        clean_labels=clean,
        test_labels=test,
        train_indices=tuple(
            indices[:length] for indices, length in zip(train_indices, lengths, strict=True)
        ),
        test_indices=tuple(
            (test // task_size == task).nonzero().flatten() for task in range(count)
        ),
        domains=domains,
        blurred=blur > 0,
    )


def keep_stream(stream: ClassStream, out: Path) -> Path:
    """Save labels and order once for all runs that share them; named by their digest.

    The digest is in each run's manifest. `ClassStream.from_tensors` reads the file back: anyone can
    see or reuse exactly what a run was shown.
    """
    path = out / "streams" / f"{stream.digest}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_bytes(stream.to_tensors()))
    return path


def _long_tailed(labels: Tensor, classes: int, ratio: float, generator: torch.Generator) -> Tensor:
    """What is kept: of class c, in the dataset's order, ratio^(-c / (C - 1)) of its examples."""
    if ratio < 1:
        raise ValueError(f"imbalance is largest class over smallest: at least 1, got {ratio}")
    parts = []
    for label in range(classes):
        members = (labels == label).nonzero().flatten()
        size = max(1, round(len(members) * ratio ** (-label / max(1, classes - 1))))
        parts.append(members[torch.randperm(len(members), generator=generator)[:size]])
    return torch.cat(parts).sort().values


def _blurred(
    deciding: Tensor,
    kept: Tensor,
    share: float,
    tasks: int,
    task_size: int,
    generator: torch.Generator,
) -> Tensor:
    """Tasks of all examples, with round(share n_c) of each class c in turn in the other tasks."""
    if not 0 <= share <= 1 or tasks < 2:
        raise ValueError(f"blur is a share in [0, 1] of streams of two tasks or more, got {share}")
    moved = deciding // task_size
    for label in range(tasks * task_size):
        members = kept[deciding[kept] == label]
        order = torch.randperm(len(members), generator=generator)
        chosen = members[order[: round(share * len(members))]]
        moved[chosen] = (label // task_size + 1 + torch.arange(len(chosen)) % (tasks - 1)) % tasks
    return moved


def _shortened(lengths: Sequence[int], limit: int | None) -> list[int]:
    """Lengths that add up to `limit`, in proportion to the given ones and at least 1."""
    empty = [task for task, length in enumerate(lengths) if length == 0]
    if empty:
        raise DataError(f"task {empty[0]} has no training examples; use fewer tasks or more data")
    if limit is not None and limit < len(lengths):
        raise DataError(
            f"limit must leave every task an example: at least {len(lengths)}, got {limit}"
        )
    if limit is None or limit >= sum(lengths):
        return list(lengths)
    # Beyond one each: the cumulative share, rounded down, so that nothing is lost to rounding.
    spare, available = limit - len(lengths), sum(lengths) - len(lengths)
    shortened, before, passed = [], 0, 0
    for length in lengths:
        passed += length - 1
        until = spare * passed // available
        shortened.append(1 + until - before)
        before = until
    return shortened
