"""Experience replay: L = CE(stream) + λ s_w CE(replay).

The two losses are summed, not averaged, as in the paper's objective; `joint_batch` takes the mean
over both batches instead, as some code bases do: with n_s stream examples and n_r replayed ones,
L = (n_s CE(stream) + λ s_w n_r CE(replay)) / (n_s + n_r). Replay starts with the second batch and
may return examples of the current task. Memories enter after the update, unaugmented.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.hosts.host import Batch, Host, Step, mislabelled
from sphere_replay.hosts.options import HostOptions, number, switch


@dataclass(frozen=True, kw_only=True)
class ExperienceOptions(HostOptions):
    """Constants of ER."""

    strength: float = number(1.0)
    """λ, the factor of the replay loss."""
    joint_batch: bool = switch(False)
    """One mean over both batches, each example alike but for λ and s_w."""


class ExperienceReplay(Host):
    """ER; other hosts override how the stream and the replayed batch are judged."""

    OPTIONS: ClassVar[type[HostOptions]] = ExperienceOptions
    options: ExperienceOptions

    def observe(self, batch: Batch) -> Step:
        """One update on the stream batch and a replayed one."""
        self.optimizer.zero_grad()
        logits = self.forward(batch.images)
        streamed = self.computed(logits, batch.labels)
        step = self._learn_in_turn(batch, logits)
        self.optimizer.step()
        self.passed(self.remember(batch), streamed)
        return step

    def stream_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of the stream batch."""
        return F.cross_entropy(logits, labels)

    def replay_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of the replayed batch."""
        return F.cross_entropy(logits, labels)

    def _learn_in_turn(self, batch: Batch, logits: Tensor) -> Step:
        """Add the gradients of the stream batch, whose logits these are, and of a replayed one."""
        loss = self.stream_loss(logits, batch.labels)
        self.backward(loss, len(batch))
        if len(self.memory) == 0:
            return Step(loss.item())
        draw, share = self.draw(), 1.0
        if self.options.joint_batch:
            # After the draw: a virtual step follows the stream gradient as it is.
            share = len(draw) / (len(batch) + len(draw))
            gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, 1 - share)
        logits = self.forward(draw["x"])
        self.passed(draw, self.computed(logits, draw["y"]))
        replayed = self.replay_loss(logits, draw["y"])
        self.backward(self.options.strength * draw.scale * share * replayed, len(draw))
        return Step(loss.item(), replayed.item(), draw.scale, len(draw), mislabelled(draw))
