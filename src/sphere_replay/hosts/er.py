"""Experience replay: L = CE(stream) + λ s_w CE(replay).

The two losses are summed, not averaged, as in the paper's objective; `joint_batch` takes the mean
over the concatenated batch instead, as some code bases do. Replay starts with the second batch and
may return examples of the current task. Memories enter after the update, unaugmented.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.hosts.host import Batch, Host, HostParts, Step, mislabelled
from sphere_replay.hosts.options import HostOptions, number, switch


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(HostOptions):
    """Constants of ER."""

    strength: float = number(1.0)
    """λ, the factor of the replay loss."""
    joint_batch: bool = switch(False)
    """One mean over both batches. Uniform selection only, because a scored selection needs the
    stream gradient by itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.joint_batch and self.strength != 1:
            raise ValueError("joint_batch takes one mean over both batches: leave strength at 1")


class ExperienceReplay(Host):
    """ER; other hosts override how the stream and the replayed batch are judged."""

    OPTIONS: ClassVar[type[HostOptions]] = ReplayOptions
    options: ReplayOptions

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        if self.options.joint_batch and self.replay.selection.needs_scores:
            raise ValueError("joint_batch works with the uniform selection only; leave it off")

    def observe(self, batch: Batch) -> Step:
        """One update on the stream batch and a replayed one."""
        self.optimizer.zero_grad()
        if self.options.joint_batch and len(self.memory):
            step = self._learn_jointly(batch)
        else:
            step = self._learn_in_turn(batch)
        self.optimizer.step()
        self.remember(batch)
        return step

    def stream_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of the stream batch."""
        return F.cross_entropy(logits, labels)

    def replay_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of the replayed batch."""
        return F.cross_entropy(logits, labels)

    def _learn_in_turn(self, batch: Batch) -> Step:
        loss = self.stream_loss(self.forward(batch.images), batch.labels)
        self.backward(loss, len(batch))
        if len(self.memory) == 0:
            return Step(loss.item())
        draw = self.draw()
        replayed = self.replay_loss(self.forward(draw["x"]), draw["y"])
        self.backward(self.options.strength * draw.scale * replayed, len(draw))
        return Step(loss.item(), replayed.item(), draw.scale, len(draw), mislabelled(draw))

    def _learn_jointly(self, batch: Batch) -> Step:
        draw = self.draw()
        logits = self.forward(torch.cat([batch.images, draw["x"]]))
        loss = F.cross_entropy(logits, torch.cat([batch.labels, draw["y"]]))
        self.backward(loss, len(logits))
        return Step(loss.item(), None, draw.scale, len(draw), mislabelled(draw))
