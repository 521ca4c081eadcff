"""No replay: the stream alone. What is forgotten here is what replay has to save."""

import torch.nn.functional as F  # noqa: N812  # torch's own convention

from sphere_replay.hosts.host import Batch, Host, Step


class NoReplay(Host):
    """Plain SGD on the stream; the memory stays empty."""

    REPLAYS = False

    def observe(self, batch: Batch) -> Step:
        """One update on the stream batch."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.forward(batch.images), batch.labels)
        self.backward(loss, len(batch))
        self.optimizer.step()
        return Step(loss.item())
