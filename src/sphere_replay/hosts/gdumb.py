"""GDumb: store greedily and class-balanced, learn nothing from the stream, then fit the memory.

The fit starts from the network's first weights: SGD with momentum, cosine warm restarts, gradient
clipping, CutMix on half of the batches. Its number is that of the last epoch: no epoch is chosen by
test accuracy.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.hosts.cutmix import cutmix
from sphere_replay.hosts.host import Batch, Host, HostParts, State, Step
from sphere_replay.hosts.warm_restarts import warm_restart_lr


class GDumb(Host):
    """GDumb on whatever the memory admits; pair it with greedy balanced admission.

    Options: `epochs` (256), `fit_batch` (16), `high_lr` (0.05), `low_lr` (0.0005), `clip` (10),
    `cutmix` (probability, 0.5), `fit_last_only` (0: after every task; 1: after the last one, as the
    paper's AAA column implies, which leaves chance accuracy before it).
    """

    REPLAYS = False
    OPTIONS: ClassVar[Mapping[str, float]] = {
        "epochs": 256,
        "fit_batch": 16,
        "high_lr": 0.05,
        "low_lr": 0.0005,
        "clip": 10.0,
        "cutmix": 0.5,
        "fit_last_only": 0,
    }

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        self._first_weights = {
            name: value.clone() for name, value in self.network.state_dict().items()
        }

    @classmethod
    def check_options(cls, options: Mapping[str, float]) -> None:
        """Refuse unknown constants, and fits that cannot be made."""
        super().check_options(options)
        for name in ("epochs", "fit_batch"):
            if options.get(name, 1) < 1:
                raise ValueError(f"option {name} must be at least 1, got {options[name]}")

    def observe(self, batch: Batch) -> Step:
        """Only remember."""
        self.remember(batch)
        return Step(0.0)

    def end_task(self, *, last: bool) -> None:
        """Fit the memory from scratch."""
        if last or not self.options["fit_last_only"]:
            self._fit()

    def _fit(self) -> None:
        self.network.load_state_dict(self._first_weights)
        self.network.train()
        optimizer = torch.optim.SGD(
            self.network.parameters(), lr=self.options["high_lr"], momentum=0.9, weight_decay=1e-6
        )
        for epoch in range(int(self.options["epochs"])):
            lr = warm_restart_lr(epoch, self.options["high_lr"], self.options["low_lr"])
            optimizer.param_groups[0]["lr"] = lr
            order = torch.randperm(len(self.memory), generator=self.parts.augmentation)
            for rows in torch.split(order, int(self.options["fit_batch"])):
                chosen = self.memory.take(rows)
                optimizer.zero_grad()
                self.backward(self._loss(chosen["x"], chosen["y"]), len(rows))
                torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.options["clip"])
                optimizer.step()

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        views = self.parts.views.augment(images, self.parts.augmentation)
        self.costs.forward += len(images)
        coin = torch.rand((), generator=self.parts.augmentation)
        if coin >= self.options["cutmix"]:
            return F.cross_entropy(self.network(views), labels)
        mixed = cutmix(views, labels, self.parts.augmentation)
        logits = self.network(mixed.images)
        own = F.cross_entropy(logits, mixed.labels)
        other = F.cross_entropy(logits, mixed.other_labels)
        return mixed.share * own + (1 - mixed.share) * other

    def state_dict(self) -> State:
        """The host's state and the weights that every fit starts from."""
        return super().state_dict() | {"first_weights": self._first_weights}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._first_weights = state["first_weights"]
