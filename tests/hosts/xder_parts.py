"""Small X-DER hosts at any point of a stream of three tasks."""

from collections.abc import Mapping

import torch
from torch import Tensor

from hosts.workbench import Net, generator, parts, stream_batch
from sphere_replay.hosts import Batch, ExtendedDarkReplay
from sphere_replay.memory import GreedyBalanced, Memory

TASKS, SIZE = 3, 2
FEW = {"contrast_batch": 5, "views": 2}


def host_with(
    options: Mapping[str, float] | None = None,
    select: str = "uniform",
    capacity: int = 24,
    every: int = 1,
) -> ExtendedDarkReplay:
    memory = Memory(capacity, GreedyBalanced(), generator=generator(1))
    made = parts(select, memory=memory, options=FEW | dict(options or {}), every=every)
    made.tasks = TASKS
    return ExtendedDarkReplay(made)


def batch_of(task: int, seed: int, size: int = 8) -> Batch:
    return stream_batch(seed, classes=(SIZE * task, SIZE * task + 1), size=size)


def learn_task(host: ExtendedDarkReplay, task: int, batches: int = 6) -> None:
    host.start_task()
    for seed in range(batches):
        host.observe(batch_of(task, 10 * task + seed))
    host.end_task(last=task + 1 == TASKS)


def at_task(task: int, **arguments: object) -> ExtendedDarkReplay:
    """A host that is about to see its first batch of a task."""
    host = host_with(**arguments)  # type: ignore[arg-type]  # passed on
    for earlier in range(task):
        learn_task(host, earlier)
    host.start_task()
    return host


def without_statistics(network: Net, views: Tensor) -> Tensor:
    """Logits by batch statistics, on a copy: nothing is learnt about the batch."""
    features = network.hidden(views.flatten(1))
    spread = features.var(dim=0, correction=0)
    unit = (features - features.mean(dim=0)) / (spread + network.norm.eps).sqrt()
    logits: Tensor = network.head(torch.relu(unit * network.norm.weight + network.norm.bias))
    return logits
