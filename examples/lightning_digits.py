"""Replay in Lightning: split digits with 40% wrong labels, a `fit` for each task.

    python examples/lightning_digits.py --select sphere-calibrated

Needs the extras `lightning` and `vision`, and half a minute.
"""

import argparse
import logging
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from sphere_replay.integrations.lightning import SphereCallback
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.vision.datasets import load_images
from sphere_replay.vision.noise import corrupt


class Classifier(LightningModule):
    """Nothing in it is about replay."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU())
        self.head = nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images `[n, 1, 8, 8]`."""
        logits: Tensor = self.head(self.body(x))
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy of the stream's batch."""
        x, y = batch
        return functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain steps."""
        return torch.optim.SGD(self.parameters(), lr=0.3)


def main() -> None:
    """Five tasks, and the accuracy on all classes after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--select", default="sphere-calibrated")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    data = load_images("digits")
    x, test_x = data.train_images.float() / 255, data.test_images.float() / 255
    y = corrupt(data.train_labels, 0.4, 10, generator_for(given.seed, "corruption"))
    with globally_seeded(generator_for(given.seed, "initialization")):
        module = Classifier()
    replay = SphereCallback(
        200, batch=20, select=given.select, features="body", every=4, seed=given.seed
    )
    for task in range(5):
        mine = y // 2 == task
        loader = DataLoader(
            TensorDataset(x[mine], y[mine]),
            batch_size=10,
            shuffle=True,
            generator=generator_for(given.seed, f"order of task {task}"),
        )
        trainer = Trainer(
            max_epochs=1,
            callbacks=[replay],
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader)
        with torch.no_grad():
            right = module(test_x).argmax(dim=1) == data.test_labels
        assert replay.replay is not None
        print(f"task {task + 1}: {100 * float(right.double().mean()):.0f}% of all classes right")
    print(replay.replay.metrics()["summary"])


if __name__ == "__main__":
    main()
