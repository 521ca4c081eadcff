"""Accuracy per class on clean test data, without and with the task identity."""

from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.hosts import Host
from sphere_replay.vision.datasets import ImageData
from sphere_replay.vision.stream import ClassStream

_CHUNK = 2000


class Accuracies(NamedTuple):
    """Accuracy of every class `[C]`; NaN for classes that are still to come."""

    class_il: Tensor
    """Predictions among all classes seen so far."""
    task_il: Tensor
    """Predictions among the classes of the example's own task."""
    counts: Tensor
    """Test examples behind each."""


def evaluate(
    host: Host, data: ImageData, stream: ClassStream, task: int, *, limit: int | None = None
) -> Accuracies:
    """Accuracies after (or during) a task, on the test data of all tasks up to it.

    `limit` takes about so many examples, every n-th of each task: always the same ones.
    """
    parts = stream.test_indices[: task + 1]
    every = 1 if limit is None else max(1, sum(map(len, parts)) // limit)
    indices = torch.cat([part[::every] for part in parts])
    labels = stream.test_labels[indices]
    chunks = torch.split(indices, _CHUNK)
    logits = torch.cat([host.predict(data.test_images[chunk]).cpu() for chunk in chunks])
    size = len(stream.tasks[0])
    seen = stream.num_classes if stream.blurred else size * (task + 1)
    own_task = torch.arange(logits.shape[1]) // size == (labels // size)[:, None]
    answers = labels
    if stream.domains:  # the labels of the first task are those of all
        seen, answers = size, labels % size
        own_task = (torch.arange(logits.shape[1]) < size).expand(len(labels), -1)
    # A network that gives NaN must not look right by accident.
    valid = ~logits.isnan().any(dim=1)
    among_seen = valid & (logits[:, :seen].argmax(dim=1) == answers)
    among_own = valid & (logits.masked_fill(~own_task, -torch.inf).argmax(dim=1) == answers)
    return Accuracies(
        _per_class(among_seen, labels, stream.num_classes),
        _per_class(among_own, labels, stream.num_classes),
        labels.bincount(minlength=stream.num_classes),
    )


def _per_class(right: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    counts = labels.bincount(minlength=num_classes).double()
    hits = labels.bincount(weights=right.double(), minlength=num_classes)
    return hits / counts
