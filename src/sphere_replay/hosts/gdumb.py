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
        self._fitting: torch.optim.SGD | None = None

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

    def fit_steps(self, *, last: bool) -> int:
        """One step for each epoch, after every task or only after the last one."""
        return int(self.options["epochs"]) if last or not self.options["fit_last_only"] else 0

    def fit(self, step: int) -> Step:
        """An epoch on the memory; the first one begins from scratch."""
        if step == 0:
            self.network.load_state_dict(self._first_weights)
            self._fitting = self._fit_optimizer()
        if self._fitting is None:
            raise ValueError(f"a fit begins with step 0, not with {step}")
        rate = warm_restart_lr(step, self.options["high_lr"], self.options["low_lr"])
        self._fitting.param_groups[0]["lr"] = rate
        self.network.train()
        order = torch.randperm(len(self.memory), generator=self.parts.augmentation)
        batches, total = torch.split(order, int(self.options["fit_batch"])), 0.0
        for rows in batches:
            chosen = self.memory.take(rows)
            self._fitting.zero_grad()
            loss = self._loss(chosen["x"], chosen["y"])
            self.backward(loss, len(rows))
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.options["clip"])
            self._fitting.step()
            total += loss.item()
        return Step(total / len(batches))

    def end_task(self, *, last: bool) -> None:
        """The fit is over."""
        self._fitting = None

    def _fit_optimizer(self) -> torch.optim.SGD:
        return torch.optim.SGD(
            self.network.parameters(), lr=self.options["high_lr"], momentum=0.9, weight_decay=1e-6
        )

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
        """The host's state, the weights that fits start from, the optimizer of one under way."""
        fitting = None if self._fitting is None else self._fitting.state_dict()
        own = {"first_weights": self._first_weights, "fitting": fitting}
        return super().state_dict() | own

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state)
        self._first_weights = state["first_weights"]
        self._fitting = None
        if state["fitting"] is not None:
            self._fitting = self._fit_optimizer()
            self._fitting.load_state_dict(state["fitting"])
