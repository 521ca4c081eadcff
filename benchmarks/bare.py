"""Experience replay without a library: what the runner's speed is measured against."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sphere_replay.randomness import generator_for, globally_seeded


class BareReplay:
    """Experience replay as written for one experiment: plain tensors, no checks, no records."""

    def __init__(self, images: Tensor, labels: Tensor, capacity: int, replay_batch: int) -> None:
        with globally_seeded(generator_for(0, "initialization")):
            self.network = nn.Sequential(
                nn.Flatten(),
                nn.Linear(images[0].numel(), 100),
                nn.ReLU(),
                nn.Linear(100, 100),
                nn.ReLU(),
                nn.Linear(100, 10),
            )
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)
        self.generator = generator_for(0, "bare loop")
        self.images, self.labels = images, labels
        self.memory_images = torch.zeros(capacity, *images.shape[1:], dtype=images.dtype)
        self.memory_labels = torch.zeros(capacity, dtype=labels.dtype)
        self.capacity, self.replay_batch = capacity, replay_batch
        self.seen = 0

    def step(self, indices: Tensor) -> None:
        """Learn from a batch of the stream and one of the memory, then offer it to the memory."""
        images, labels = self.images[indices], self.labels[indices]
        self.optimizer.zero_grad()
        loss = cross_entropy(self.network(images.float() / 255), labels)
        filled = min(self.seen, self.capacity)
        if filled:
            drawn = torch.randperm(filled, generator=self.generator)[: self.replay_batch]
            replayed = self.network(self.memory_images[drawn].float() / 255)
            loss = loss + cross_entropy(replayed, self.memory_labels[drawn])
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.step()
        position = torch.arange(self.seen, self.seen + len(labels))
        slots = (torch.rand(len(labels), generator=self.generator) * (position + 1)).long()
        slots = torch.where(position < self.capacity, position, slots)
        kept = slots < self.capacity
        self.memory_images[slots[kept]] = images[kept]
        self.memory_labels[slots[kept]] = labels[kept]
        self.seen += len(labels)
