"""Rescorings of a run, kept for looking at: what the memory held, and why it was weighed so.

A recording is a pair of files for each moment, in the folder `recording` of the run. The run takes
no notice: scoring leaves the model and every random stream as they were, and nothing here is part
of a run's identity, its state or its results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sphere_replay.allocation import Sphere, allocate
from sphere_replay.allocation.backing import Votes, back_labels, votes_cast
from sphere_replay.geometry import Geometry, build_geometry
from sphere_replay.replay import Engine, Scorer, Weighting
from sphere_replay.scoring import Scores
from sphere_replay.storage.saved import load_tree, save_tree

FOLDER = "recording"
NEIGHBOURS = 6
"""How many of a memory's neighbours are kept, the nearest first."""
VOTED = 3
"""Labels with the most votes that are kept, beside a memory's own."""
_BLOCK = 256
"""Columns of the kernel at a time."""


@dataclass(frozen=True)
class Shown:
    """What a person can see of some memories, `[m]` each."""

    keys: Sequence[int]
    """The same for the same memory in every run on the same stream."""
    tasks: Tensor
    """The task each came from, by its place in the stream."""
    names: Sequence[str]
    """Of the labels, or of the tasks where there are no labels."""
    labels: Tensor | None = None
    true: Tensor | None = None
    images: Tensor | None = None
    """uint8 `[m, c, h, w]`."""
    texts: Sequence[str] | None = None
    fleeting: bool = False
    """Whether the texts are of this moment alone: the same memory has others later."""


class Recorder:
    """Keeps the first rescoring at or after each of some steps.

    Args:
        folder: Where the files go.
        steps: The moments.
        recipe: Says who is a neighbour where the selection does not ask neighbours.
        show: What there is to see of the memories in some slots.
    """

    def __init__(
        self, folder: Path, steps: Sequence[int], recipe: Sphere, show: Callable[[Tensor], Shown]
    ) -> None:
        self.step = 0
        """The present one; whoever takes the steps says it."""
        self._folder, self._steps = folder, sorted(steps)
        self._recipe, self._show = recipe, show

    def watch(self, engine: Engine) -> None:
        """Be told of the draws of an engine."""
        engine.watch = lambda score: self._look(engine, score)

    def take(self, slots: Tensor, scores: Scores, weighting: Weighting) -> None:
        """Keep this rescoring if its moment has none yet."""
        name = self._due()
        if name is None:
            return
        head = {"step": self.step, "mass": weighting.mass, "ess": weighting.effective_sample_size}
        tree = what_was_seen(scores, weighting, self._recipe, self._show(slots))
        self._folder.mkdir(parents=True, exist_ok=True)
        save_tree(self._folder, name, tree, head=head)

    def _look(self, engine: Engine, score: Scorer) -> None:
        if self._due() is None:
            return
        weighting, slots = engine.weighting, engine.schedule.slots
        if weighting is None or weighting.scores is None:  # nothing is weighed
            slots = torch.arange(len(engine.memory))
            weighting = Weighting(torch.full((len(slots),), 1 / len(slots), dtype=torch.float64))
        scores = weighting.scores
        if scores is None or scores.landmarks is not None:  # all are scored for the record, then
            scores = score(slots)
        self.take(slots, scores, weighting)

    def _due(self) -> str | None:
        """Name of the moment that has come and is not recorded yet."""
        passed = [step for step in self._steps if step <= self.step]
        name = f"step-{passed[-1]:07d}" if passed else None
        return None if name is None or (self._folder / f"{name}.json").exists() else name


def moments_of(steps: Sequence[int], count: int, every: int) -> list[int]:
    """So many of the steps, evenly spaced, the last with a rescoring still to come after it."""
    last = max(1, len(steps) - 1 - min(every, len(steps) // 4))
    places = sorted({max(1, last * place // count) for place in range(1, count + 1)})
    return [steps[place] for place in places if place < len(steps)]


def read_recording(run: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Head and tree of every moment that a run has recorded, in the order of its stream."""
    folder = run / FOLDER
    return [load_tree(folder, path.stem) for path in sorted(folder.glob("step-*.json"))]


def what_was_seen(
    scores: Scores, weighting: Weighting, recipe: Sphere, shown: Shown
) -> dict[str, Any]:
    """Everything about a rescoring of m memories that is worth a look, as a tree to save."""
    if scores.features is None:
        raise ValueError("a map of the memory needs features: score memories with them")
    allocation = weighting.allocation
    if allocation is None or allocation.geometry is None:
        allocation = allocate(scores.increments, scores.features, recipe)
    geometry = allocation.geometry or build_geometry(scores.features, recipe.distance)
    neighbours, shares = nearest(geometry, allocation.eps_s)
    tree: dict[str, Any] = {
        "keys": list(shown.keys),
        "names": list(shown.names),
        "tasks": shown.tasks,
        "places": projected(scores.features),
        "increments": scores.increments.float(),
        "losses": scores.losses.float(),
        "consensus": allocation.consensus.float(),
        "weights": weighting.weights.float(),
        "neighbours": neighbours,
        "shares": shares,
        "labels": shown.labels,
        "true": shown.true,
        "images": shown.images,
        "texts": None if shown.texts is None else list(shown.texts),
        "fleeting": shown.fleeting,
        "backing": None,
        "agreement": allocation.agreement,
    }
    if shown.labels is not None:
        labels = shown.labels.to(geometry.device)
        backing = allocation.backing
        if backing is None:
            backing = back_labels(geometry, allocation.eps_s, labels).shares
        tree["backing"] = backing.float()
        # Counted as the recipe counts them, if it counts at all: they are what backing is made of.
        tree["voted"], tree["votes"] = _votes(geometry, allocation.eps_s, labels, allocation.votes)
    return tree


def projected(features: Tensor) -> Tensor:
    """The two principal directions of unit features `[m, d]`, as places `[m, 2]`.

    Signs are settled by the largest coordinate, so equal features give equal places.
    """
    rows = torch.nn.functional.normalize(features.detach().cpu().double().flatten(1), dim=1)
    rows = rows - rows.mean(0)
    if rows.shape[1] < 2:
        rows = torch.nn.functional.pad(rows, (0, 2 - rows.shape[1]))
    _, directions = torch.linalg.eigh(rows.T @ rows)
    places = rows @ directions[:, -2:].flip(1)
    largest = places.abs().argmax(0)
    signs = torch.where(places[largest, torch.arange(2)] < 0, -1.0, 1.0)
    settled: Tensor = places * signs
    return settled.float()


def nearest(geometry: Geometry, eps: float) -> tuple[Tensor, Tensor]:
    """Of each memory the nearest others, int64 `[m, k]`, and their shares of its neighbourhood."""
    size = geometry.size
    count = min(NEIGHBOURS, size - 1)
    found, kept = [], []
    for block in torch.split(torch.arange(size, device=geometry.device), _BLOCK):
        columns = torch.zeros(size, len(block), dtype=geometry.dtype, device=geometry.device)
        columns[block, torch.arange(len(block), device=geometry.device)] = 1.0
        # The kernel is symmetric: column i is what memory i hears, without itself.
        heard = geometry.apply_kernel(eps, columns, others_only=True)
        shares = heard / heard.sum(0).clamp(min=1e-30)
        top = shares.topk(count, dim=0)
        found.append(top.indices.T.cpu())
        kept.append(top.values.T.float().cpu())
    return torch.cat(found), torch.cat(kept)


def _votes(geometry: Geometry, eps: float, labels: Tensor, votes: Votes) -> tuple[Tensor, Tensor]:
    """The labels with the most votes, int64 `[m, v]`, and their shares of all votes.

    A memory's own label is the last of them if it is not among the first.
    """
    classes, belongs, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    cast = votes_cast(geometry, eps, labels[:, None] == classes, counts, votes)
    shares = cast / cast.sum(1, keepdim=True).clamp(min=1e-30)
    chosen = shares.topk(min(VOTED + 1, len(classes)), dim=1).indices
    absent = (chosen != belongs[:, None]).all(dim=1)
    chosen[absent, -1] = belongs[absent]
    return classes[chosen].cpu(), shares.gather(1, chosen).float().cpu()
