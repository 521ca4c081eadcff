"""A fit to the memory after a task: what GDumb, PuriDivER and ABS share.

An epoch is one step of the run, so that a run can stop and go on in the middle of a fit. Learning
rates fall along cosines with warm restarts. Every epoch has random numbers of its own: however many
it takes, the views of the stream that follows stay the same for all selections.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sphere_replay.errors import DivergenceError
from sphere_replay.hosts.host import Batch, Host, HostParts, Step
from sphere_replay.hosts.options import HostOptions, count, number, share, switch
from sphere_replay.hosts.parts.cutmix import Mixed, cutmix_sometimes, mixed_cross_entropy
from sphere_replay.randomness import branched
from sphere_replay.scoring import FoldedForward, Forward, cross_entropy_per_example
from sphere_replay.scoring.folding import can_fold
from sphere_replay.storage.trees import State

_CHUNK = 512
"""Stored examples that are appraised at a time."""


@dataclass(frozen=True, eq=False)
class Appraisal:
    """What a network thinks of n stored examples in evaluation mode, without a graph."""

    losses: Tensor
    """`[n]`: cross-entropy of the stored labels."""
    features: Tensor
    """`[n, d]`"""
    logits: Tensor
    """`[n, C]`"""


@dataclass(frozen=True, kw_only=True)
class FitOptions(HostOptions):
    """Constants of a fit."""

    epochs: int = count(255, least=1)
    fit_batch: int = count(16, least=2)
    """Examples of a step; one alone has no batch statistics."""
    high_lr: float = number(0.03)
    """At the start of a cycle."""
    low_lr: float = number(0.0003)
    """Towards its end."""
    momentum: float = number(0.9)
    weight_decay: float = number(0.0001)
    clip: float = number(0.0)
    """Largest norm of the gradient of a step; 0: not clipped."""
    fit_last_only: bool = switch(False)
    """After the last task alone, not after every one."""


class MemoryFit(Host):
    """A host that fits its memory; subclasses write `_epoch`, and how the stream is learnt."""

    OPTIONS: ClassVar[type[HostOptions]] = FitOptions
    options: FitOptions
    FIRST_RATE: ClassVar[int] = 1
    """Where the first epoch stands in the schedule of warm restarts."""
    NESTEROV: ClassVar[bool] = False

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        self._fitting: torch.optim.SGD | None = None
        self._met = torch.zeros(parts.num_classes, dtype=torch.bool)

    @classmethod
    def constants(cls) -> dict[str, Any]:
        """A host's, and the form of its fit."""
        return super().constants() | {"first_rate": cls.FIRST_RATE, "nesterov": cls.NESTEROV}

    def remember(self, batch: Batch, **fields: Tensor) -> Tensor:
        """Offer a batch to the memory, and note its classes."""
        slots = super().remember(batch, **fields)
        self._meet(batch)
        return slots

    def fit_steps(self, *, last: bool) -> int:
        """One step for each epoch, after every task or only after the last one."""
        return self.options.epochs if last or not self.options.fit_last_only else 0

    def fit(self, step: int) -> Step:
        """An epoch on the memory."""
        if step == 0:
            self._fitting = self._fit_optimizer()
            self._begin_fit()
        if self._fitting is None:
            raise ValueError(f"a fit begins with step 0, not with {step}")
        high, low = self.options.high_lr, self.options.low_lr
        rate = warm_restart_lr(step + self.FIRST_RATE, high, low)
        self._fitting.param_groups[0]["lr"] = rate
        self.network.train()
        if len(self.memory) < 2:
            return Step(0.0)  # one example has no batch statistics
        with branched(self.parts.augmentation):
            losses = self._epoch(step)
        return Step(sum(losses) / len(losses))

    def end_task(self, *, last: bool) -> None:
        """The fit is over, and the network not the one that training passed examples through."""
        self._fitting = None
        self.replay.forget_passes()

    @abstractmethod
    def _epoch(self, step: int) -> list[float]:
        """Epoch 0, 1, ... of a fit to two memories or more; the loss of each update."""

    def _begin_fit(self) -> None:
        """Before the first epoch."""
        if len(self.memory) < 2:
            self.note(f"nothing is fitted to a memory that holds {len(self.memory)} examples")
            return
        absent = self._met & (self.memory["y"].cpu().bincount(minlength=len(self._met)) == 0)
        if absent.any():
            names = ", ".join(str(label) for label in absent.nonzero().flatten().tolist())
            self.note(f"the memory fit cannot teach classes without a memory: {names}")

    def _meet(self, batch: Batch) -> None:
        self._met[batch.labels.cpu()] = True

    def _update(self, loss: Tensor, examples: int) -> float:
        """A step of the fit down a loss over that many examples; the loss as a number."""
        assert self._fitting is not None  # fit() has made it
        self._fitting.zero_grad()
        self.backward(loss, examples)
        if self.options.clip:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.options.clip)
        self._fitting.step()
        return loss.item()

    def _appraise(self, images: Tensor, labels: Tensor) -> Appraisal:
        """What the network makes of stored examples; counted as scoring."""
        self.spend_on_scoring(len(images))
        return appraise(self.network, images, labels, self.parts.views.prepare)

    def _batches(self, order: Tensor) -> list[Tensor]:
        batches = list(torch.split(order, self.options.fit_batch))
        if len(batches) > 1 and len(batches[-1]) == 1:
            # One example has no batch statistics.
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def _cycled(self, slots: Tensor, steps: int, size: int) -> list[Tensor]:
        """A batch of the slots for every step, each slot as often as any other up to one."""
        if size == 0:
            return [slots[:0]] * steps
        rounds = math.ceil(steps * size / len(slots))
        order = torch.cat([self._shuffled(slots) for _ in range(rounds)])
        return list(torch.split(order[: steps * size], size))

    def _shuffled(self, slots: Tensor) -> Tensor:
        return slots[torch.randperm(len(slots), generator=self.parts.augmentation)]

    def _fit_optimizer(self) -> torch.optim.SGD:
        momentum = self.options.momentum
        return torch.optim.SGD(
            self.network.parameters(),
            lr=self.options.high_lr,
            momentum=momentum,
            weight_decay=self.options.weight_decay,
            nesterov=self.NESTEROV and momentum > 0,
        )

    def state_dict(self) -> State:
        """The host's state, the classes it has met, and the optimizer of a fit under way."""
        fitting = None if self._fitting is None else self._fitting.state_dict()
        return super().state_dict() | {"met": self._met, "fitting": fitting}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._met = state["met"].clone()
        self._fitting = None
        if state["fitting"] is not None:
            self._fitting = self._fit_optimizer()
            self._fitting.load_state_dict(state["fitting"])


@dataclass(frozen=True, kw_only=True)
class MixedFitOptions(FitOptions):
    """Constants of a fit whose batches are mixed now and then."""

    cutmix: float = share(0.5)
    """Probability that a batch is mixed."""


class MixedFit(MemoryFit):
    """A fit by cross-entropy and CutMix, as GDumb has it and PuriDivER begins."""

    OPTIONS: ClassVar[type[HostOptions]] = MixedFitOptions
    options: MixedFitOptions

    def _epoch(self, step: int) -> list[float]:
        losses = []
        for rows in self._batches(self._shuffled(torch.arange(len(self.memory)))):
            chosen = self.memory.take(rows)
            loss = self._cross_entropy(self._mix(self.view(chosen["x"]), chosen["y"]))
            losses.append(self._update(loss, len(rows)))
        return losses

    def _mix(self, views: Tensor, labels: Tensor) -> Mixed:
        return cutmix_sometimes(views, labels, self.parts.augmentation, self.options.cutmix)

    def _cross_entropy(self, mixed: Mixed) -> Tensor:
        return mixed_cross_entropy(self.run(mixed.images), mixed)


def appraise(
    network: nn.Module, images: Tensor, labels: Tensor, prepare: Callable[[Tensor], Tensor]
) -> Appraisal:
    """One pass over stored images `[n, ...]`; batch norms are folded where that is exact.

    The network is in training mode afterwards.
    """
    own: Any = network.forward_features
    forward: Forward = FoldedForward(network) if can_fold(network) else own
    network.eval()
    with torch.no_grad():
        outputs = [forward(prepare(part)) for part in torch.split(images, _CHUNK)]
    network.train()
    features, logits = (torch.cat(values) for values in zip(*outputs, strict=True))
    losses = cross_entropy_per_example(logits, labels)
    if not bool(losses.isfinite().all()):
        number = int((~losses.isfinite()).nonzero()[0])
        raise DivergenceError(f"the loss of stored example {number} is {float(losses[number])}")
    return Appraisal(losses, features, logits)


def warm_restart_lr(epoch: int, high: float, low: float) -> float:
    """Learning rate of an epoch: a tenth of `high` first, then warm restarts at 1, 2, 4, 8, ...

    Within the cycle that starts at 2^j the rate falls from `high` towards `low` along a cosine.
    """
    if epoch == 0:
        return high / 10
    start = 1 << (epoch.bit_length() - 1)
    return low + (high - low) / 2 * (1 + math.cos(math.pi * (epoch - start) / start))
