"""Replay in Lightning: a callback for the `Trainer`, whatever the module's training step does.

replay = SphereCallback(500, batch=32, select="sphere", features="body", every=4)
for task in tasks:
    Trainer(max_epochs=1, callbacks=[replay]).fit(module, task)
"""

from typing import Any, Unpack

import torch
from torch import Tensor

from sphere_replay.extras import needing
from sphere_replay.integrations.embedded import EmbeddedReplay, ReplayOptions
from sphere_replay.memory import Memory
from sphere_replay.replay import Replay

with needing("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import SingleDeviceStrategy

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")
"""Without a gradient scaler, whose factor nobody could test here."""


class SphereCallback(Callback):
    """Keeps a memory of the batches of `fit`, and replays from it in every optimizer step.

    A step is that of the optimizer, in automatic optimization and in manual: with gradient
    accumulation the gradients of all its batches are the stream gradient, and the batches are
    remembered after it. Gradients are clipped, if at all, after replay was added. Each `fit`
    begins a task, unless it resumes from a checkpoint. Checkpoints hold memory and replay as
    tensors and plain values.

    Batches are `(inputs, targets)`; the replayed loss is the mean of `loss(module(inputs),
    targets)`, in the trainer's precision. Scoring is done outside of autocast.

    Args:
        memory: What to replay from, with the fields `x` and `y`; or the capacity of a reservoir.
        batch: Memories replayed in a step.
        seed: Of the streams of admission and replay.
        joint_batch: Mean over stream and replayed examples together instead of the sum of means.
        every_epoch: Remember batches of every epoch; of the first of each `fit` alone unless given,
            so that nothing is remembered twice.
        options: Those of `Replay`: `select`, `features`, `every`, `pool`, `loss`, ...
    """

    def __init__(
        self,
        memory: Memory | int,
        *,
        batch: int = 32,
        seed: int = 0,
        joint_batch: bool = False,
        every_epoch: bool = False,
        **options: Unpack[ReplayOptions],
    ) -> None:
        self.every_epoch = every_epoch
        self.embedded = EmbeddedReplay(
            memory, batch=batch, seed=seed, joint_batch=joint_batch, **options
        )
        self._pending: list[tuple[Tensor, Tensor]] = []
        """Batches of the step under way."""
        self._stepped = self._resumed = False
        self._first_epoch = 0

    @property
    def memory(self) -> Memory:
        """What there is to replay."""
        return self.embedded.memory

    @property
    def replay(self) -> Replay | None:
        """Made when the first `fit` starts."""
        return self.embedded.replay

    def start_task(self) -> None:
        """Rescore at the next step; `fit` does it, but for one that resumes."""
        self.embedded.start_task()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what cannot work before the first step."""
        if not isinstance(trainer.strategy, SingleDeviceStrategy):
            raise ValueError(
                f"SphereCallback replays on one device, not with {type(trainer.strategy).__name__}:"
                " processes would step apart; train with devices=1"
            )
        if trainer.precision not in PRECISIONS:
            raise ValueError(
                f"SphereCallback does not work with precision={trainer.precision!r}: choose one of "
                f"{', '.join(PRECISIONS)}"
            )
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"the module has {len(trainer.optimizers)} optimizers, and replay looks ahead "
                "along the step of one: configure a single optimizer (it may have several groups)"
            )
        self.embedded.follow(pl_module, trainer.optimizers[0])
        self._pending, self._stepped = [], False
        if not self._resumed:
            self._first_epoch = trainer.current_epoch
            self.embedded.start_task()
        self._resumed = False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Take the batch apart before anything is trained on it."""
        self._pending.append(_pair(batch))

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Add the replay gradient to that of the stream."""
        self._stepped = True
        if all(parameter.grad is None for parameter in pl_module.parameters()):
            return  # the training step has skipped its batch

        def mean_loss(x: Tensor, y: Tensor) -> Tensor:
            with trainer.precision_plugin.forward_context():
                return self.embedded.loss(pl_module(x), y).mean()

        with torch.enable_grad():
            streamed = sum(len(y) for _, y in self._pending)
            self.embedded.follow(pl_module, optimizer)
            self.embedded.add_gradient(mean_loss, streamed)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the batches of a step that was taken."""
        if self._stepped:
            if self.every_epoch or trainer.current_epoch == self._first_epoch:
                for x, y in self._pending:
                    self.embedded.remember(x, y)
            self._pending, self._stepped = [], False

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint: tensors and plain values."""
        return {**self.embedded.state_dict(), "first_epoch": self._first_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint; Lightning does this before there is an optimizer."""
        self._first_epoch = state_dict["first_epoch"]
        self.embedded.load_state_dict(state_dict)
        self._resumed = True


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a batch."""
    if not isinstance(batch, list | tuple) or len(batch) < 2:
        raise ValueError(
            f"SphereCallback remembers batches (inputs, targets), got a {type(batch).__name__}: "
            "let the data loader give pairs of tensors"
        )
    x, y = batch[0], batch[1]
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise ValueError(
            "SphereCallback remembers tensors, got a batch of "
            f"{type(x).__name__} and {type(y).__name__}"
        )
    return x, y
