"""What an allocation meets outside of a benchmark: other work on the machine, and real features."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.timing import threads
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.vision.datasets import load_images

_LOOP = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""

_SETTLE_SECONDS = 0.5
_EPOCHS = 3
_BATCH = 32


@contextmanager
def busy_process() -> Iterator[int]:
    """A process that keeps one core busy, in a session of its own; yields its id.

    Schedulers share a machine between sessions first, so this is what another terminal, container
    or user looks like. It ends by itself should this process be killed.
    """
    process = subprocess.Popen([sys.executable, "-c", _LOOP], start_new_session=True)
    try:
        time.sleep(_SETTLE_SECONDS)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@cache
def trained_features(size: int, dim: int) -> tuple[Tensor, Tensor]:
    """Penultimate features `[size, dim]` of an MLP that was trained on digits, and their labels.

    There are 1,348 digits to train on; moved by up to a pixel each way they are nine times as many.
    """
    data = load_images("digits")
    moves = [(down, right) for down in (0, -1, 1) for right in (0, -1, 1)]
    still = data.train_images.float() / 255
    images = torch.cat([still.roll(move, dims=(2, 3)) for move in moves]).flatten(1)
    labels = data.train_labels.repeat(len(moves))
    if size > len(images):
        raise ValueError(f"there are {len(images)} digits to take features of, not {size}")
    with globally_seeded(generator_for(0, "initialization")):
        body = nn.Sequential(nn.Linear(64, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        network = nn.Sequential(body, nn.Linear(dim, 10))
    order = generator_for(0, "stream order")
    with threads(1):  # steps this small are no faster on several
        _train(network, images, labels, order)
    chosen = torch.randperm(len(images), generator=order)[:size]
    with torch.no_grad():
        return body(images[chosen]), labels[chosen]


def _train(network: nn.Module, images: Tensor, labels: Tensor, order: torch.Generator) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(_EPOCHS):
        for batch in torch.split(torch.randperm(len(images), generator=order), _BATCH):
            optimizer.zero_grad()
            loss = cross_entropy(network(images[batch]), labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
