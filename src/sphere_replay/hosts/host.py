"""What every host shares: its parts, the bookkeeping of a step, and its state.

A host learns from one stream batch at a time. What it is made of (network, memory, replay
controller, views) is handed to it, so that two hosts differ in their losses and nothing else.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from sphere_replay.errors import DivergenceError, unknown
from sphere_replay.memory import Memory
from sphere_replay.replay import Draw, Replay
from sphere_replay.runs.job import Costs
from sphere_replay.scoring import (
    FoldedForward,
    NonFiniteError,
    Scores,
    cross_entropy_per_example,
    score,
)
from sphere_replay.scoring.folding import can_fold

State = dict[str, Any]

LOGGER = logging.getLogger(__name__)


class Views(Protocol):
    """How stored images become network inputs."""

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
    """What a host is made of. `options` are the host's own constants, by name."""

    network: nn.Module
    memory: Memory
    replay: Replay
    views: Views
    augmentation: torch.Generator
    num_classes: int
    lr: float
    replay_batch: int
    virtual_lr: float
    options: dict[str, float] = field(default_factory=dict)
    tasks: int = 1
    """Tasks of the stream, of `num_classes / tasks` classes each, in the order of their ids."""


class Host(ABC):
    """A learner. Subclasses write `observe`; most only need `stream_loss` and `replay_loss`."""

    OPTIONS: ClassVar[Mapping[str, float]] = {}
    """The host's own constants and their defaults."""
    SWITCHES: ClassVar[tuple[str, ...]] = ()
    """Options that are 0 or 1."""
    COUNTS: ClassVar[tuple[str, ...]] = ()
    """Options that are whole numbers."""
    SHARES: ClassVar[tuple[str, ...]] = ()
    """Options that are probabilities or parts of a whole."""
    LEAST: ClassVar[Mapping[str, float]] = {}
    """Options that must not be smaller than this; all others not below 0."""
    REPLAYS: ClassVar[bool] = True
    """Whether a selection has anything to decide."""
    TASK_LABELS: ClassVar[bool] = False
    """Whether every training label must be one of its own task's."""
    BALANCED: ClassVar[bool] = False
    """Whether it offers each class its share of the memory, which admission must not thin out."""

    def __init__(self, parts: HostParts) -> None:
        self.check_options(parts.options)
        self.options = {**self.OPTIONS, **parts.options}
        self.parts = parts
        self.network = parts.network
        self.memory = parts.memory
        self.replay = parts.replay
        self.costs = Costs()
        self.notes: dict[str, int] = {}
        """What was not as a host would have it, but no reason to stop, and how often."""
        self.optimizer = torch.optim.SGD(parts.network.parameters(), lr=parts.lr)

    @classmethod
    def check_options(cls, options: Mapping[str, float]) -> None:
        """Refuse constants that this host does not have, and values that make no sense."""
        for name, value in options.items():
            if name not in cls.OPTIONS:
                raise ValueError(unknown(f"option of {cls.__name__}", name, cls.OPTIONS))
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ValueError(f"option {name} takes a number that is not negative: {value!r}")
            if name in cls.SWITCHES and value not in (0, 1):
                raise ValueError(f"option {name} is a switch, 0 or 1, got {value}")
            if name in cls.COUNTS and value != int(value):
                raise ValueError(f"option {name} counts: a whole number, got {value}")
            if name in cls.SHARES and value > 1:
                raise ValueError(f"option {name} is a share, at most 1, got {value}")
            if value < (least := cls.LEAST.get(name, 0)):
                raise ValueError(f"option {name} must be at least {least:g}, got {value}")

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
        logits: Tensor = self.network(views)
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

    def draw(self) -> Draw:
        """Memories to replay; scores them when due, reusing the stream gradient."""
        return self.replay.draw(self.parts.replay_batch, self._score)

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

    def remember(self, batch: Batch, **fields: Tensor) -> None:
        """Offer a batch to the memory: images as they came, never augmented."""
        self.memory.add(x=batch.images, y=batch.labels, true=batch.true_labels, **fields)

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

    def _score(self, slots: Tensor) -> Scores:
        self.costs.forward += 2 * len(slots)
        self.costs.scored += 2 * len(slots)
        slots = slots.to(self.memory.device)
        try:
            return score(
                self.network,
                self.memory["x"].index_select(0, slots),
                self.memory["y"].index_select(0, slots),
                lr=self.parts.virtual_lr,
                loss=self.scored_loss,
                prepare=self.parts.views.prepare,
            )
        except NonFiniteError as error:
            raise DivergenceError(str(error)) from error


def mislabelled(draw: Draw) -> int:
    """How many of the drawn memories carry a wrong label."""
    return int((draw["y"] != draw["true"]).count_nonzero())
