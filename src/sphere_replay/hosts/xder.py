"""X-DER: dark replay with one head per task, whose future heads are prepared and kept quiet.

    L = CE(stream, present head) + α MSE(f(x'), z') + β CE(f(x''), y''; past heads)
      + contrast SupCon(future heads) + η (future constraint + past constraint)

Memory changes at task ends only, and stored logits are kept up to date: the heads that an example's
logits could not know yet are transplanted from the network's later outputs. A selection decides
both replay draws, by one vector of probabilities; the contrastive draw is uniform.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.hosts.host import Batch, Host, HostParts, Step, mislabelled
from sphere_replay.hosts.options import HostOptions, count, number, switch
from sphere_replay.hosts.parts.extended_dark import (
    frozen_statistics,
    future_constraint,
    past_constraint,
    supervised_contrastive,
    transplant,
)
from sphere_replay.memory import ClassBalanced, Memory
from sphere_replay.replay import Draw
from sphere_replay.scoring import cross_entropy_per_example
from sphere_replay.storage.trees import State

_CHUNK = 64


@dataclass(frozen=True, eq=False)
class _Replayed:
    """Outputs for n drawn memories, those of the distillation first; a slot may come twice."""

    slots: Tensor
    labels: Tensor
    logits: Tensor
    passed: int
    """Images behind the outputs, those that only joined for their statistics among them."""

    @cached_property
    def first_of_each(self) -> Tensor:
        """Rows of the first occurrence of every slot, rising."""
        ordered, order = self.slots.sort(stable=True)
        new = torch.ones_like(ordered, dtype=torch.bool)
        new[1:] = ordered[1:] != ordered[:-1]
        return order[new].sort().values


@dataclass(frozen=True, kw_only=True)
class ExtendedDarkOptions(HostOptions):
    """Constants of X-DER."""

    alpha: float = number(0.1)
    """Weight of the distillation."""
    beta: float = number(0.5)
    """Weight of the stored labels."""
    gamma: float = number(0.85)
    """Transplanted logits stay below this part of the label's own."""
    contrast: float = number(0.05)
    """Weight of SupCon; 0 leaves it out."""
    contrast_batch: int = count(64, least=1)
    """Memories in it."""
    views: int = count(4, least=1)
    """Strong views of each image in it."""
    temperature: float = number(5.0, positive=True)
    """Divides its similarities."""
    eta: float = number(0.1)
    """Weight of the constraints."""
    margin: float = number(0.3)
    """Of the constraints."""
    future_constraint: bool = switch(True)
    past_constraint: bool = switch(False)
    align_bn: bool = switch(True)
    """Whether batch norms learn from a mixed batch, and from no other forward of a step."""


class ExtendedDarkReplay(Host):
    """X-DER, whose stream shows the classes of one task after the other.

    Pair it with greedy balanced admission.
    """

    TASK_LABELS = True
    TASK_CLASSES = True
    TOLD_TASKS = True
    BALANCED = True
    OPTIONS: ClassVar[type[HostOptions]] = ExtendedDarkOptions
    options: ExtendedDarkOptions

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        if parts.num_classes % parts.tasks:
            raise ValueError(
                f"X-DER has a head of equal size per task: {parts.num_classes} classes do not "
                f"split into {parts.tasks} tasks"
            )
        self.head_size = parts.num_classes // parts.tasks
        self.task = -1
        self._updates = torch.zeros(self.memory.capacity, dtype=torch.int64)
        self._held: Memory | None = None

    @classmethod
    def constants(cls) -> dict[str, Any]:
        """A host's, and how many images share their statistics when logits are stored."""
        return super().constants() | {"chunk": _CHUNK}

    @property
    def first_class(self) -> int:
        """Of the current task; also the number of classes of all earlier ones."""
        return self.task * self.head_size

    def start_task(self) -> None:
        """Move on to the next head; from here on examples are held back for the memory."""
        super().start_task()
        if self.task + 1 == self.parts.tasks:
            raise ValueError(f"X-DER was built with heads for {self.parts.tasks} tasks, not more")
        self.task += 1
        quota = max(1, self.memory.capacity // (self.first_class + self.head_size))
        self._held = self._holdback(quota * self.head_size)

    def observe(self, batch: Batch) -> Step:
        """One update by all losses; then the logits of what was replayed may be renewed."""
        self._check_labels(batch.labels)
        self.optimizer.zero_grad()
        view = self.view(batch.images)
        # The stream alone would pull the statistics to its task: a mixed batch renews them.
        with frozen_statistics(self.network, self._aligns):
            logits = self.run(view)
        present = logits[:, self.first_class : self.first_class + self.head_size]
        loss = F.cross_entropy(present, batch.labels - self.first_class)
        # The constraints may need the stream's graph once more.
        self.backward(loss, len(batch), again=self._keeps_future or self._keeps_past)
        step, replayed, losses, passed = Step(loss.item()), None, [], 0
        rows, heads = logits, torch.full_like(batch.labels, self.task)
        if len(self.memory):
            # Both draws precede any other gradient: a virtual step follows the stream's alone.
            dark, labelled = self.draw(), self.redraw()
            replayed = self._replay(dark, labelled, view)
            distance = F.mse_loss(replayed.logits[: len(dark)], dark["logits"])
            past = replayed.logits[len(dark) :, : self.first_class]
            label_loss = F.cross_entropy(past, labelled["y"])
            losses += [self.options.alpha * distance, self.options.beta * label_loss]
            unique = replayed.first_of_each
            rows = torch.cat([rows, replayed.logits[unique]])
            heads = torch.cat([heads, replayed.labels[unique] // self.head_size])
            passed = replayed.passed
            wrong = mislabelled(dark) + mislabelled(labelled)
            step = Step(loss.item(), label_loss.item(), 1.0, len(replayed.slots), wrong)
        excess = self._excess(logits, rows, heads)
        violated = bool(excess > 0)  # if not, the stream's graph has no more use
        if violated:
            losses.append(self.options.eta * excess)
        if losses:
            self.backward(torch.stack(losses).sum(), passed + violated * len(batch))
        self._prepare_future_heads(batch)
        self.optimizer.step()
        if replayed is not None:
            self._renew_logits(replayed)
        assert self._held is not None
        self._held.add(x=batch.images, y=batch.labels, true=batch.true_labels)
        return step

    def scored_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What label replay minimizes: the cross-entropy over past heads."""
        return cross_entropy_per_example(logits[:, : self.first_class], labels)

    def end_task(self, *, last: bool) -> None:
        """Store examples of the task with their logits; bring those of older ones up to date."""
        with torch.no_grad(), frozen_statistics(self.network):
            self._insert()
            self._refresh()
        self._updates.zero_()
        self._held = None

    @property
    def _aligns(self) -> bool:
        """Whether the batch of the distillation is the one that batch norms learn from."""
        return self.options.align_bn and len(self.memory) > 0

    def _replay(self, dark: Draw, labelled: Draw, stream_view: Tensor) -> _Replayed:
        """Outputs for both draws; some of the stream joins the first for its batch statistics."""
        view = self.view(dark["x"])
        if self._aligns:
            view = torch.cat([view, stream_view[: self.parts.replay_batch // self.task]])
        dark_logits = self.run(view)
        with frozen_statistics(self.network, self._aligns):
            labelled_logits = self.forward(labelled["x"])
        return _Replayed(
            torch.cat([dark.indices, labelled.indices]),
            torch.cat([dark["y"], labelled["y"]]),
            torch.cat([dark_logits[: len(dark)], labelled_logits]),
            len(view) + len(labelled),
        )

    @property
    def _keeps_future(self) -> bool:
        """Whether future heads must stay below the present one."""
        return self.options.future_constraint and self.task + 1 < self.parts.tasks

    @property
    def _keeps_past(self) -> bool:
        """Whether past heads must stay below the present one."""
        return self.options.past_constraint and self.task > 0

    def _excess(self, logits: Tensor, rows: Tensor, heads: Tensor) -> Tensor:
        """Violations: of the future constraint by all rows, of the past one by the stream's."""
        margin, excess = self.options.margin, logits.new_zeros(())
        if self._keeps_future:
            excess = excess + future_constraint(rows, heads, self.task, self.head_size, margin)
        if self._keeps_past:
            seen = logits[:, : self.first_class + self.head_size]
            excess = excess + past_constraint(seen, self.first_class, margin)
        return excess

    def _prepare_future_heads(self, batch: Batch) -> None:
        """Contrast strong views of stored and new images in the logits of every future head."""
        if self.task + 1 == self.parts.tasks or not self.options.contrast:
            return
        images, labels = batch.images, batch.labels
        if len(self.memory):
            # Not from the replay generator: whatever the selection, this draw is the same.
            shuffled = torch.randperm(len(self.memory), generator=self.parts.augmentation)
            drawn = self.memory.take(shuffled[: self.options.contrast_batch])
            images, labels = torch.cat([drawn["x"], images]), torch.cat([drawn["y"], labels])
        if images.shape[1] == 1:
            self.note("images without colors: strong views are crops, brightness and contrast")
        views = self.options.views
        strong = self.parts.views.strengthen(images.repeat(views, 1, 1, 1), self.parts.augmentation)
        with frozen_statistics(self.network, self.options.align_bn):
            logits = self.run(strong)
        future = logits[:, self.first_class + self.head_size :]
        # [views * n, heads * size] to one problem per head.
        features = future.reshape(views, len(images), -1, self.head_size).permute(2, 0, 1, 3)
        losses = supervised_contrastive(features, labels, self.options.temperature)
        self.backward(self.options.contrast * losses.mean(), len(strong))

    def _renew_logits(self, replayed: _Replayed) -> None:
        """Transplant present and future heads, the n-th time since the task began with odds 1/n."""
        # One number per draw, needed or not, so that a selection moves no other random choice.
        uniforms = torch.rand(len(replayed.slots), generator=self.parts.augmentation)
        unique = replayed.first_of_each
        slots = replayed.slots[unique]
        self._updates[slots] += 1
        accepted = unique[uniforms[unique] * self._updates[slots] < 1]
        fresh = replayed.logits[accepted].detach()
        self._transplant(replayed.slots[accepted], fresh, replayed.labels[accepted])

    def _transplant(self, slots: Tensor, fresh: Tensor, labels: Tensor) -> None:
        """Give stored examples of earlier tasks the logits of heads from the present one on."""
        stored = self.memory["logits"].index_select(0, slots.to(self.memory.device))
        block, gamma = slice(self.first_class, None), self.options.gamma
        self.memory.update(slots, logits=transplant(stored, fresh, labels, block, gamma))

    def _insert(self) -> None:
        assert self._held is not None  # start_task() made it
        rows = self._held.take(torch.arange(len(self._held)))
        present = range(self.first_class, self.first_class + self.head_size)
        found = set(rows["y"].tolist()) if rows else set()
        for label in sorted(set(present) - found):
            self.note(f"task {self.task} had no example of class {label} to remember")
        if not found:
            return
        logits = self._chunked_logits(rows["x"])
        if self.task > 0:
            past = slice(0, self.first_class)
            logits = transplant(logits, logits, rows["y"], past, self.options.gamma)
        self.memory.add(**rows, logits=logits)

    def _refresh(self) -> None:
        """Outputs of the whole memory, because its mixture decides the batch statistics."""
        if self.task == 0 or len(self.memory) == 0:
            return
        logits = self._chunked_logits(self.memory["x"])
        old = (self.memory["y"] < self.first_class).nonzero().squeeze(1)
        self._transplant(old, logits[old], self.memory["y"][old])

    def _chunked_logits(self, images: Tensor) -> Tensor:
        """Logits of training views, in parts of nearly equal size: none has too small a batch."""
        parts = images.tensor_split(-(-len(images) // _CHUNK))
        return torch.cat([self.forward(part) for part in parts])

    def _holdback(self, capacity: int) -> Memory:
        """A uniform sample of each class of the task: what a second look at it would choose."""
        source, device = self.memory.generator, self.memory.device
        return Memory(capacity, ClassBalanced(), generator=source, device=device)

    def _check_labels(self, labels: Tensor) -> None:
        if self.task < 0:
            raise ValueError("X-DER has no head to learn yet: call start_task() first")
        low, high = (int(bound) for bound in labels.aminmax())
        first, end = self.first_class, self.first_class + self.head_size
        if low < first or high >= end:
            raise ValueError(
                f"task {self.task} has the classes {first} to {end - 1}, got labels {low} to "
                f"{high}: X-DER needs every training label in its own task (split_by='noisy')"
            )

    def state_dict(self) -> State:
        """The host's state, the place in the stream and what is held back for the memory."""
        return super().state_dict() | {
            "task": self.task,
            "updates": self._updates,
            "held": None if self._held is None else self._held.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self.task = state["task"]
        self._updates = state["updates"].clone()
        self._held = None
        if state["held"] is not None:
            self._held = self._holdback(state["held"]["capacity"])
            self._held.load_state_dict(state["held"])
