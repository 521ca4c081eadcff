"""ABS: ER-ACE on a memory that is kept clean and hard, then consolidated by MixMatch.

Only the stream examples of lowest loss are offered to the memory, and what a full one gives up is
decided by `memory.AsymmetricBalanced`, by losses that are brought up to date whenever a memory is
replayed. After a task the network goes on learning from the memory alone: a mixture of two
Gaussians through the losses tells trusted labels from doubtful ones, anew at every epoch. The
alternating schedule of the full method (AER) needs several epochs per task and has no place in a
single pass.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.hosts.er_ace import AsymmetricOptions, AsymmetricReplay
from sphere_replay.hosts.host import Batch, HostParts, Step
from sphere_replay.hosts.options import HostOptions, count, number, share
from sphere_replay.hosts.parts.memory_fit import FitOptions, MemoryFit
from sphere_replay.hosts.parts.mixmatch import guess_targets, mixmatch_loss
from sphere_replay.hosts.parts.mixture import (
    CONSTANTS,
    UNFINISHED,
    NoSplitError,
    in_unit_interval,
    split_in_two,
)
from sphere_replay.memory import Insight
from sphere_replay.replay import Draw
from sphere_replay.storage.trees import State


@dataclass(frozen=True, eq=False)
class Trust:
    """Slots of the memory by what the mixture says of their labels; disjoint and complete."""

    trusted: Tensor
    doubtful: Tensor
    probability: Tensor
    """Of a right label, `[len(memory)]`."""


@dataclass(frozen=True, kw_only=True)
class AsymmetricBalancedOptions(FitOptions, AsymmetricOptions):
    """Constants of ABS, beside those of ER-ACE and of a fit."""

    epochs: int = count(255)
    """0: no fit."""
    fit_batch: int = count(32, least=4)
    """Trusted examples of a step, in batches of nearly equal size: at least four, so that all have
    two or more, as batch norms need."""
    clip: float = number(10.0)
    offered: float = share(0.25, positive=True)
    """Part of a batch that is offered to the memory."""
    warm_up: int = count(10)
    """Epochs that trust every label."""
    guesses: int = count(3, least=1)
    """Views behind a guessed target."""
    temperature: float = number(0.5, positive=True)
    """Of the guesses."""
    doubt: float = number(0.01)
    """Weight of the doubtful part."""


class AsymmetricBalancedReplay(MemoryFit, AsymmetricReplay):
    """ABS with MixMatch consolidation; pair it with asymmetric balanced admission."""

    OPTIONS: ClassVar[type[HostOptions]] = AsymmetricBalancedOptions
    TASK_CLASSES = True
    TOLD_TASKS = True
    options: AsymmetricBalancedOptions

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        self.task = -1

    @classmethod
    def constants(cls) -> dict[str, Any]:
        """ER-ACE's, those of a fit, and of how trust is found."""
        return super().constants() | CONSTANTS

    def start_task(self) -> None:
        """Everything stored so far belongs to the past now."""
        super().start_task()
        self.task += 1

    def insight(self) -> Insight:
        """Where the current task begins."""
        size = self.parts.num_classes // self.parts.tasks
        return Insight(first_class=max(self.task, 0) * size)

    def observe(self, batch: Batch) -> Step:
        """ER-ACE's update; then the memory is offered what the network found easy before it."""
        self.optimizer.zero_grad()
        step = self._learn_in_turn(batch, self.forward(batch.images))
        losses = self._stream_losses(batch)
        self.optimizer.step()
        count = max(1, round(self.options.offered * len(batch)))
        # Stable: equal losses are offered in stream order on every machine.
        rows = losses.argsort(stable=True)[:count].sort().values
        chosen = Batch(batch.images[rows], batch.labels[rows], batch.true_labels[rows])
        self.remember(chosen, loss=losses[rows])
        self._meet(batch)  # all of it: a class that is never offered is missed too
        return step

    def draw(self) -> Draw:
        """Memories to replay, whose stored losses are brought up to date."""
        draw = super().draw()
        losses = F.cross_entropy(self._plain_logits(draw["x"]), draw["y"], reduction="none")
        self.memory.update(draw.indices, loss=losses)
        return draw

    def _epoch(self, step: int) -> list[float]:
        """MixMatch on the memory."""
        # What a short task could not teach has a high loss too: first give every label a chance.
        trust = self._trust() if step >= self.options.warm_up else self._trust_all()
        order = self._shuffled(trust.trusted)
        batches = order.tensor_split(-(-len(order) // self.options.fit_batch))
        size = min(len(trust.doubtful), self.options.fit_batch)
        doubtful = self._cycled(trust.doubtful, len(batches), size)
        return [
            self._update(
                self._mixmatch(rows, doubted, trust.probability),
                len(rows) + self.options.guesses * len(doubted),
            )
            for rows, doubted in zip(batches, doubtful, strict=True)
        ]

    def _stream_losses(self, batch: Batch) -> Tensor:
        """Of the images as they will be stored, over the columns that the stream may see."""
        logits = self._plain_logits(batch.images)
        masked = self._masked(logits, batch.labels)
        return F.cross_entropy(masked, batch.labels, reduction="none")

    def _trust(self) -> Trust:
        """The mixture's verdict now; without one, or with too few to trust, all are trusted."""
        seen = self._appraise(self.memory["x"], self.memory["y"])
        try:
            split = split_in_two(in_unit_interval(seen.losses))
        except NoSplitError as error:
            self.note(f"an epoch of the memory fit trusted every label: {error}")
            return self._trust_all()
        trusted, doubtful = (part.nonzero().squeeze(1) for part in (split.is_low, ~split.is_low))
        if len(trusted) < 2:
            self.note("an epoch of the memory fit trusted every label: fewer than 2 seem clean")
            return self._trust_all()
        if not split.converged:
            self.note(UNFINISHED)
        return Trust(trusted, doubtful, split.low.float())

    def _trust_all(self) -> Trust:
        everything = torch.arange(len(self.memory))
        return Trust(everything, everything[:0], torch.ones(len(everything)))

    def _mixmatch(self, trusted: Tensor, doubtful: Tensor, probability: Tensor) -> Tensor:
        known, doubted = self.memory.take(trusted), self.memory.take(doubtful)
        guesses, classes = self.options.guesses, self.parts.num_classes
        onehot = F.one_hot(known["y"], classes).float()
        # View by view, each in the order of the images: so are the targets repeated below.
        views = self.view(doubted["x"].repeat(guesses, 1, 1, 1))
        targets = onehot[:0]
        if len(doubtful):
            logits = self._eval_logits(views).reshape(guesses, len(doubtful), classes)
            weight = probability[doubtful].to(logits.device)
            targets = guess_targets(logits, doubted["y"], weight, self.options.temperature)
        return mixmatch_loss(
            self.run,
            (self.view(known["x"]), onehot),
            (views, targets.repeat(guesses, 1)),
            self.parts.augmentation,
            weight=self.options.doubt,
        )

    def _plain_logits(self, images: Tensor) -> Tensor:
        self.costs.scored += len(images)
        return self._eval_logits(self.parts.views.prepare(images))

    def _eval_logits(self, views: Tensor) -> Tensor:
        """Of views, in evaluation mode and without a graph."""
        self.network.eval()
        with torch.no_grad():
            logits = self.run(views)
        self.network.train()
        return logits

    def state_dict(self) -> State:
        """ER-ACE's state, that of a host that fits, and the task."""
        return super().state_dict() | {"task": self.task}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self.task = state["task"]
