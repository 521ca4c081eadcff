"""Lightning: it has no replay, so the callback stands beside ER as one writes it into a module."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

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
from sphere_replay import Memory
from sphere_replay.integrations.lightning import SphereCallback
from sphere_replay.randomness import generator_for

PACKAGE = "lightning"


class Module(LightningModule):
    """A classifier as people write it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.network(x)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Cross-entropy of a batch."""
        x, y = batch
        return functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain steps."""
        return torch.optim.SGD(self.parameters(), lr=RATE)


class WithReplay(Module):
    """ER by hand: a reservoir, and one batch of stream and memory together."""

    def __init__(self, network: nn.Module, seed: int) -> None:
        super().__init__(network)
        self.memory = Memory(CAPACITY, generator=generator_for(seed, "admission"))
        self.source = generator_for(seed, "replay")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Cross-entropy of a batch, and of as many memories as there are, up to the number."""
        x, y = batch
        if len(self.memory):
            chosen = torch.randperm(len(self.memory), generator=self.source)[:REPLAYED]
            drawn = self.memory.take(chosen)
            x, y = torch.cat([x, drawn["x"]]), torch.cat([y, drawn["y"]])
        self.memory.add(x=batch[0], y=batch[1])
        return functional.cross_entropy(self(x), y)


class Watching(Callback):
    """Tells a watch of the updates."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_train_batch_end(self, *arguments: Any, **named: Any) -> None:
        """An update was made."""
        self.watch.updated()


def train(method: str, stream: Stream, network: nn.Module, seed: int) -> dict[str, float]:
    """A `fit` for each task."""
    module = WithReplay(network, seed) if method == OWN else Module(network)
    watch = Watch(stream, network)
    callbacks: list[Callback] = [Watching(watch)]
    if method != OWN:
        sphere = SphereCallback(
            CAPACITY,
            batch=REPLAYED,
            seed=seed,
            joint_batch=True,
            select=method,
            every=EVERY,
            features="network.body",
        )
        callbacks.insert(0, sphere)
    for task in stream.tasks:
        rows = [(x[i], y[i]) for x, y in task for i in range(len(y))]
        trainer = Trainer(
            max_epochs=1,
            callbacks=callbacks,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(rows, batch_size=BATCH))  # type: ignore[arg-type]  # a list
    return watch.result()
