"""What every host shares: its parts, the bookkeeping of a step, and its state.

A host learns from one stream batch at a time. What it is made of (network, memory, replay
engine, views) is handed to it, so that two hosts differ in their losses and nothing else.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from sphere_replay.errors import DivergenceError
from sphere_replay.hosts.optimizers import Sgd, StreamOptimizer
from sphere_replay.hosts.options import HostOptions
from sphere_replay.memory import Insight, Memory
from sphere_replay.replay import Draw, Engine, alike_in_training
from sphere_replay.runs.job import Costs
from sphere_replay.scoring import (
    FoldedForward,
    NonFiniteError,
    Scores,
    cross_entropy_per_example,
    score,
)
from sphere_replay.scoring.folding import can_fold
from sphere_replay.storage.trees import State

LOGGER = logging.getLogger(__name__)

Computed = tuple[Tensor, Tensor]
"""Features `[n, d]` and losses `[n]` of a training pass."""


class Views(Protocol):
    """How stored images become network inputs."""

    @property
    def augments(self) -> bool:
        """Whether views for training are others than the plain one."""
        ...

    def prepare(self, images: Tensor) -> Tensor:
        """The plain view, for scoring and evaluation."""
        ...

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """A fresh random view, for training."""
        ...

    def strengthen(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """A fresh view that keeps little but the class, for contrastive terms."""
        ...


@dataclass(frozen=True)
class Batch:
    """A stream batch: stored images, their (maybe wrong) labels, the true ones for logs only."""

    images: Tensor
    labels: Tensor
    true_labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Step:
    """What one step did, for the log."""

    loss: float
    replay_loss: float | None = None
    mass: float | None = None
    drawn: int = 0
    drawn_mislabelled: int = 0


@dataclass
class HostParts:
    """What a host is made of."""

    network: nn.Module
    memory: Memory
    replay: Engine
    views: Views
    augmentation: torch.Generator
    num_classes: int
    lr: float
    replay_batch: int
    virtual_lr: float | None
    options: Mapping[str, Any] = field(default_factory=dict)
    """The host's own constants by name, where they are not the defaults of its `OPTIONS`."""
    tasks: int = 1
    """Tasks of the stream, of `num_classes / tasks` classes each, in the order of their ids."""
    geometry: Callable[[Tensor], Tensor] | None = None
    """Stored images `[m, ...]` to what an allocation measures distances between; None: the
    network's own features."""
    optimizer: StreamOptimizer = field(default_factory=Sgd)
    """What it learns from the stream with."""


class Host(ABC):
    """A learner. Subclasses write `observe`, from the parts of a step that are here.

    One that differs from ER in how a batch is judged is a subclass of `ExperienceReplay` instead,
    and overrides its `stream_loss` or `replay_loss` alone.
    """

    OPTIONS: ClassVar[type[HostOptions]] = HostOptions
    """The type of the host's own constants; a subclass says it again for its `options`."""
    REPLAYS: ClassVar[bool] = True
    """Whether a selection has anything to decide."""
    TASK_LABELS: ClassVar[bool] = False
    """Whether every training label must be one of its own task's."""
    TASK_CLASSES: ClassVar[bool] = False
    """Whether it takes each class for one of a single task."""
    TOLD_TASKS: ClassVar[bool] = False
    """Whether it has to be told where tasks begin."""
    BALANCED: ClassVar[bool] = False
    """Whether it offers each class its share of the memory, which admission must not thin out."""

    def __init__(self, parts: HostParts) -> None:
        self.options = self.OPTIONS.of(parts.options)
        self.parts = parts
        self.network = parts.network
        self.memory = parts.memory
        self.replay = parts.replay
        self.costs = Costs()
        self._reuses = (
            parts.replay.reuses
            and parts.geometry is None
            and not parts.views.augments
            and type(self).view is Host.view
            and not getattr(parts.network, "autocast", False)  # scoring never is in half precision
            and alike_in_training(parts.network)
        )
        """Whether what a training pass computes is what scoring would."""
        self._features: Tensor | None = None
        """Of the latest pass, where replay can use them."""
        self.notes: dict[str, int] = {}
        """What was not as a host would have it, but no reason to stop, and how often."""
        self.optimizer = parts.optimizer.build(parts.network.parameters(), parts.lr)

    @classmethod
    def constants(cls) -> dict[str, Any]:
        """What decides its results and is no option: part of a run's identity."""
        return {}

    @abstractmethod
    def observe(self, batch: Batch) -> Step:
        """Learn from a stream batch."""

    def start_task(self) -> None:
        """A new task begins."""
        self.replay.start_task()
        self.network.train()

    def fit_steps(self, *, last: bool) -> int:
        """How many calls of `fit` a task's end takes; a run may stop between any two of them."""
        return 0

    def fit(self, step: int) -> Step:
        """Step 0, 1, ... of a long fit to the memory, before `end_task`."""
        raise NotImplementedError(f"{type(self).__name__} fits nothing in steps")

    def end_task(self, *, last: bool) -> None:  # noqa: B027  # most hosts have nothing to do
        """A task is over; what a host does at once with its memory happens here."""

    def predict(self, images: Tensor) -> Tensor:
        """Logits `[n, classes]` of stored images, in evaluation mode."""
        folded = FoldedForward(self.network) if can_fold(self.network) else None
        self.network.eval()
        with torch.inference_mode():
            views = self.parts.views.prepare(images.to(self.memory.device))
            logits: Tensor = self.network(views) if folded is None else folded(views)[1]
        self.network.train()
        return logits

    def view(self, images: Tensor) -> Tensor:
        """A fresh random view of stored images."""
        return self.parts.views.augment(images, self.parts.augmentation)

    def run(self, views: Tensor) -> Tensor:
        """Logits of views, counted as passes."""
        self.costs.forward += len(views)
        if not self._reuses:
            logits: Tensor = self.network(views)
            return logits
        features, logits = self.network.forward_features(views)  # type: ignore[operator]  # not in nn.Module
        self._features = features.detach()
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a fresh random view of stored images."""
        return self.run(self.view(images))

    def backward(self, loss: Tensor, examples: int, *, again: bool = False) -> None:
        """Add the gradient of a loss over that many examples; `again` keeps its graph for more."""
        if not math.isfinite(loss.item()):
            raise DivergenceError(f"the loss is {loss.item()}")
        loss.backward(retain_graph=again)  # type: ignore[no-untyped-call]  # untyped in torch
        self.costs.backward += examples

    def computed(self, logits: Tensor, labels: Tensor) -> Computed | None:
        """What the pass that gave these logits just now computed, where replay can use it."""
        if self._features is None:
            return None
        with torch.no_grad():
            return self._features, self.scored_loss(logits, labels)

    def passed(self, what: Draw | Tensor, computed: Computed | None) -> None:
        """Hand on what was computed of a draw, or of some slots, to save them a scoring pass."""
        if computed is not None:
            self.replay.passed(what, *computed)

    def draw(self) -> Draw:
        """Memories to replay; scores them when due, reusing the stream gradient."""
        draw = self.replay.draw(self.parts.replay_batch, self.score, self.labels)
        self.spend_on_scoring(draw.cost)
        return draw

    def redraw(self) -> Draw:
        """A second, independent draw for the same step."""
        return self.replay.redraw(self.parts.replay_batch)

    def note(self, reason: str) -> None:
        """Count a reason for doing less than asked; a warning tells of its first time."""
        if reason not in self.notes:
            LOGGER.warning("%s", reason)
        self.notes[reason] = self.notes.get(reason, 0) + 1

    def scored_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Losses `[n]` of stored examples, whose rise by the virtual step is their increment."""
        return cross_entropy_per_example(logits, labels)

    def remember(self, batch: Batch, **fields: Tensor) -> Tensor:
        """Offer a batch to the memory: images as they came, never augmented; slots as `add` has."""
        rows = {"x": batch.images, "y": batch.labels, "true": batch.true_labels, **fields}
        return self.memory.add(self.insight(), **rows)

    def insight(self) -> Insight:
        """What it knows of the rows it offers, for admissions that ask."""
        return Insight()

    def state_dict(self) -> State:
        """Everything the next step depends on."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "memory": self.memory.state_dict(),
            "replay": self.replay.state_dict(),
            "augmentation": self.parts.augmentation.get_state(),
            "costs": asdict(self.costs),
            "notes": dict(self.notes),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.memory.load_state_dict(state["memory"])
        self.replay.load_state_dict(state["replay"])
        self.parts.augmentation.set_state(state["augmentation"])
        self.costs = Costs(**state["costs"])
        self.notes = dict(state["notes"])

    def spend_on_scoring(self, passes: int) -> None:
        """Count examples passed forward only to judge memories."""
        self.costs.forward += passes
        self.costs.scored += passes

    def labels(self, slots: Tensor) -> Tensor:
        """Stored class numbers."""
        return self.memory["y"].index_select(0, slots.to(self.memory.device))

    def score(self, slots: Tensor, *, increments: bool = True) -> Scores:
        """How the losses of stored examples would change by the gradient at hand."""
        slots = slots.to(self.memory.device)
        try:
            scores = score(
                self.network,
                self.memory["x"],
                self.memory["y"],
                rows=slots,
                lr=self.parts.virtual_lr,
                loss=self.scored_loss,
                prepare=self.parts.views.prepare,
                optimizer=self.optimizer if self.parts.optimizer.ADAPTIVE else None,
                increments=increments,
            )
        except NonFiniteError as error:
            raise DivergenceError(str(error)) from error
        if self.parts.geometry is None:
            return scores
        stored = self.memory["x"].index_select(0, slots)
        return replace(scores, features=self.parts.geometry(stored).flatten(1))


def mislabelled(draw: Draw) -> int:
    """How many of the drawn memories carry a wrong label."""
    return int((draw["y"] != draw["true"]).count_nonzero())
