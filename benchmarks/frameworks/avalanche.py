"""Avalanche: `SphereReplayPlugin` beside its own `ReplayPlugin`, both in `Naive`.

Both see the same examples with the same labels in the same tasks. The order within a task is
Avalanche's where it replays itself: its loader shuffles stream and memory together or not at all.
"""

from typing import Any

import torch
from torch import nn

from benchmarks.frameworks import torchvision_stand_in
from benchmarks.frameworks.comparison import (
    BATCH,
    CAPACITY,
    EVERY,
    OWN,
    RATE,
    REPLAYED,
    Stream,
    Watch,
)
from sphere_replay.randomness import generator_for, globally_seeded

torchvision_stand_in.install()

from avalanche.benchmarks import benchmark_from_datasets  # noqa: E402
from avalanche.benchmarks.utils import (  # noqa: E402
    _make_taskaware_tensor_classification_dataset as as_dataset,
)
from avalanche.training.plugins import (  # noqa: E402
    EvaluationPlugin,
    ReplayPlugin,
    SupervisedPlugin,
)
from avalanche.training.supervised import Naive  # noqa: E402

from sphere_replay.integrations.avalanche import SphereReplayPlugin  # noqa: E402

PACKAGE = "avalanche-lib"


class Watching(SupervisedPlugin):  # type: ignore[misc]  # Avalanche is not typed for others
    """Tells a watch of the updates."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """An update was made."""
        self.watch.updated()


def train(
    method: str, stream: Stream, network: nn.Module, seed: int, online: bool = False
) -> dict[str, float]:
    """An experience for each task."""
    datasets = []
    for task in stream.tasks:
        x, y = (torch.cat(parts) for parts in zip(*task, strict=True))
        datasets.append(as_dataset(x, y, targets=y.tolist(), task_labels=0))
    replay: Any = ReplayPlugin(CAPACITY, batch_size=BATCH, batch_size_mem=REPLAYED)
    if method != OWN:
        replay = SphereReplayPlugin(
            CAPACITY,
            REPLAYED,
            seed=seed,
            select=method,
            every=EVERY,
            features="body",
            online=online,
        )
    watch = Watch(stream, network)
    strategy = Naive(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=RATE),
        train_mb_size=BATCH,
        plugins=[replay, Watching(watch)],
        evaluator=EvaluationPlugin(),
    )
    with globally_seeded(generator_for(seed, "replay")):
        for experience in benchmark_from_datasets(train=datasets).train_stream:
            strategy.train(experience, shuffle=method == OWN)
    return watch.result()
