"""A plug-in: a selection, a host, a dataset and a table of one's own, known to every command.

sphere ls --plugin examples/plugin.py
sphere sweep shapes --plugin examples/plugin.py --seeds 3 --out runs
sphere table shapes --plugin examples/plugin.py --runs runs
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.hosts import ExperienceReplay
from sphere_replay.hosts.er import ExperienceOptions
from sphere_replay.hosts.options import share
from sphere_replay.plugins import DatasetSpec, dataset, host, selection, table
from sphere_replay.replay import Weighting
from sphere_replay.runs.table import Measure, Table, TableRow
from sphere_replay.scoring import Scores


@selection("tempered")
@dataclass(frozen=True)
class Tempered:
    """Weights exp(δ / (temperature · largest |δ|)): the more a loss would rise, the more replay."""

    temperature: float = 0.5
    needs_scores = True
    needs_features = False
    needs_increments = True
    every = 4

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        """A softmax of the increments, which is uniform where nothing would change."""
        largest = scores.increments.abs().max().clamp(min=1e-12)
        return Weighting((scores.increments / (self.temperature * largest)).double().softmax(0))


@dataclass(frozen=True, kw_only=True)
class SmoothOptions(ExperienceOptions):
    """Those of ER, and one more."""

    smoothing: float = share(0.1)
    """Share of the target that all classes divide among themselves."""


@host("er-smooth", lr=0.05)
class SmoothReplay(ExperienceReplay):
    """ER with smoothed labels in memory: a wrong one is believed a little less."""

    OPTIONS = SmoothOptions
    options: SmoothOptions

    def replay_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy to smoothed labels."""
        return F.cross_entropy(logits, labels, label_smoothing=self.options.smoothing)


@dataset(DatasetSpec("shapes", 4, 2, (1, 6, 6)), capacity=40, batch=10, replay_batch=10)
def shapes(folder: Path | None) -> dict[str, Tensor]:
    """Noisy pictures of four shapes: a row, a column, a diagonal and a square."""
    canvas = torch.zeros(4, 6, 6)
    canvas[0, 2], canvas[1, :, 3] = 1, 1
    canvas[2], canvas[3, 1:5, 1:5] = torch.eye(6), 1
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}
    for split, count in (("train", 240), ("test", 80)):
        labels = torch.arange(count) % 4
        noisy = 0.6 * canvas[labels] + 0.4 * torch.rand((count, 6, 6), generator=generator)
        tensors[f"{split}_images"] = (255 * noisy).to(torch.uint8)[:, None]
        tensors[f"{split}_labels"] = labels
    return tensors


table(
    Table(
        name="shapes",
        title="Four shapes, tail accuracy (%)",
        preset="shapes",
        rows=(
            TableRow("ER", "er", "uniform"),
            TableRow("ER + tempered", "er", "tempered", "ER"),
            TableRow("smooth ER", "er-smooth", "uniform", "ER"),
        ),
        columns={"40%": {"noise": 0.4}},
        measures=(Measure("tail_accuracy"),),
    )
)
