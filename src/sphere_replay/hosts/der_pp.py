"""DER++: L = CE(stream) + alpha MSE(f(x'), z') + beta CE(f(x''), y''), two independent draws.

z' are the logits that the network gave to the example's augmented view just before it learnt from
it; the image is stored unaugmented, and the logits are never refreshed. The MSE is the mean over
batch and classes.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F  # noqa: N812  # torch's own convention

from sphere_replay.hosts.host import Batch, Host, Step, mislabelled
from sphere_replay.hosts.options import HostOptions, number


@dataclass(frozen=True, kw_only=True)
class DarkOptions(HostOptions):
    """Constants of DER++."""

    alpha: float = number(0.5)
    """Weight of the distillation."""
    beta: float = number(0.5)
    """Weight of the stored labels."""


class DarkExperienceReplay(Host):
    """DER++."""

    OPTIONS: ClassVar[type[HostOptions]] = DarkOptions
    options: DarkOptions

    def observe(self, batch: Batch) -> Step:
        """One update on the stream batch, on stored logits and on stored labels."""
        self.optimizer.zero_grad()
        logits = self.forward(batch.images)
        streamed = self.computed(logits, batch.labels)
        loss = F.cross_entropy(logits, batch.labels)
        self.backward(loss, len(batch))
        step = Step(loss.item())
        if len(self.memory):
            # Both draws come before any replay gradient: a virtual step follows the stream's alone.
            dark, labelled = self.draw(), self.redraw()
            dark_logits = self.forward(dark["x"])
            self.passed(dark, self.computed(dark_logits, dark["y"]))
            distance = F.mse_loss(dark_logits, dark["logits"])
            self.backward(self.options.alpha * distance, len(dark))
            labelled_logits = self.forward(labelled["x"])
            self.passed(labelled, self.computed(labelled_logits, labelled["y"]))
            replayed = F.cross_entropy(labelled_logits, labelled["y"])
            self.backward(self.options.beta * replayed, len(labelled))
            wrong = mislabelled(dark) + mislabelled(labelled)
            step = Step(loss.item(), replayed.item(), 1.0, len(dark) + len(labelled), wrong)
        self.optimizer.step()
        self.passed(self.remember(batch, logits=logits.detach()), streamed)
        return step
