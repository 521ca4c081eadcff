"""Replay in Avalanche: a plugin for its strategies, and its memory as a storage policy.

replay = SphereReplayPlugin(mem_size=500, features="features", select="sphere-calibrated")
strategy = Naive(model=model, optimizer=optimizer, plugins=[replay], ...)
for experience in benchmark.train_stream:
    strategy.train(experience)
"""

from typing import Any, Unpack

import torch
from torch import Tensor

from sphere_replay.extras import needing
from sphere_replay.integrations.embedded import EmbeddedReplay, ReplayOptions
from sphere_replay.memory import Memory
from sphere_replay.randomness import generator_for
from sphere_replay.replay import Replay
from sphere_replay.storage.trees import State

with needing("avalanche"):
    from avalanche.benchmarks.utils import (
        AvalancheDataset,
        _make_taskaware_tensor_classification_dataset,
    )
    from avalanche.models import MultiTaskModule
    from avalanche.training.plugins import SupervisedPlugin
    from avalanche.training.storage_policy import ExemplarsBuffer

_AT_ONCE = 256
"""Examples of an experience that are offered to a memory together."""


class MemoryBuffer(ExemplarsBuffer):  # type: ignore[misc]  # Avalanche is not typed for others
    """A memory of ours as a storage policy of Avalanche's.

    It is offered whole experiences, after each; by `SphereReplayPlugin(online=True)` every batch as
    it is trained on.

    Args:
        memory: With the fields `x` and `y`.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory.capacity)
        self.memory = memory

    @property
    def buffer(self) -> AvalancheDataset:
        """What is remembered, as a dataset; inputs are as they were trained on."""
        if len(self.memory) == 0:
            return self._buffer
        x, y = self.memory["x"].clone(), self.memory["y"].clone()
        return _make_taskaware_tensor_classification_dataset(
            x, y, targets=y.tolist(), task_labels=0
        )

    def post_adapt(self, agent_state: Any, exp: Any) -> None:
        """Offer the examples of an experience, in order."""
        rows = [(x, int(y)) for x, y, *_ in exp.dataset]
        for first in range(0, len(rows), _AT_ONCE):
            inputs, targets = zip(*rows[first : first + _AT_ONCE], strict=True)
            self.memory.add(x=torch.stack(inputs), y=torch.tensor(targets))

    def resize(self, strategy: Any, new_size: int) -> None:
        """Refused: slots are given out once."""
        raise ValueError(f"a memory keeps its {self.max_size} slots: make another of {new_size}")


class SphereReplayPlugin(SupervisedPlugin):  # type: ignore[misc]  # Avalanche is not typed for others
    """Replays from a memory of the stream in every update of a strategy.

    Takes the place of Avalanche's `ReplayPlugin` in strategies that train by gradient steps on one
    head, such as `Naive`. Which memories are replayed is for a selection to say. Task labels are
    not kept, so models of several heads are refused.

    Args:
        mem_size: Capacity of the memory.
        batch_size_mem: Memories replayed in an update; as many as the strategy's batch unless
            given.
        storage_policy: A memory of your own, with another admission, say; of `mem_size`.
        seed: Of the streams of admission and replay.
        joint_batch: Mean over stream and replayed examples together, as in `ReplayPlugin`; False
            for the sum of the two means.
        online: Remember the batches of an experience while it is trained on, in its first epoch;
            unless given an experience is remembered when it is over, as in `ReplayPlugin`.
        options: Those of `Replay`: `select`, `features`, `every`, `pool`, `loss`, ...
    """

    def __init__(
        self,
        mem_size: int = 200,
        batch_size_mem: int | None = None,
        storage_policy: MemoryBuffer | None = None,
        *,
        seed: int = 0,
        joint_batch: bool = True,
        online: bool = False,
        **options: Unpack[ReplayOptions],
    ) -> None:
        super().__init__()
        if storage_policy is None:
            storage_policy = MemoryBuffer(
                Memory(mem_size, generator=generator_for(seed, "admission"))
            )
        if not isinstance(storage_policy, MemoryBuffer) or storage_policy.max_size != mem_size:
            raise ValueError(
                f"storage_policy must be a MemoryBuffer of {mem_size} examples: replay weighs "
                "memories by the versions of their slots, which other policies do not have"
            )
        self.storage_policy, self.online = storage_policy, online
        self.batch_size_mem = batch_size_mem
        self.embedded = EmbeddedReplay(
            storage_policy.memory,
            batch=1 if batch_size_mem is None else batch_size_mem,  # known when training starts
            seed=seed,
            joint_batch=joint_batch,
            **options,
        )

    @property
    def replay(self) -> Replay | None:
        """Made when the first experience starts."""
        return self.embedded.replay

    def before_training(self, strategy: Any, **kwargs: Any) -> None:
        """Refuse what cannot work."""
        if isinstance(strategy.model, MultiTaskModule):
            raise ValueError(
                f"{type(strategy.model).__name__} needs a task label for each example, and "
                "SphereReplayPlugin keeps none: use a model with one head"
            )

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Follow the strategy's model and optimizer; a new experience is a new task."""
        if self.batch_size_mem is None:
            self.embedded.batch = strategy.train_mb_size
        self.embedded.follow(strategy.model, strategy.optimizer)
        if getattr(strategy.experience, "is_first_subexp", True):  # online streams are cut finely
            self.embedded.start_task()

    def after_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the replay gradient to that of the stream."""

        def mean_loss(x: Tensor, y: Tensor) -> Tensor:
            loss: Tensor = strategy._criterion(strategy.model(x), y)
            return loss

        self.embedded.follow(strategy.model, strategy.optimizer)
        self.embedded.add_gradient(mean_loss, len(strategy.mb_y))

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Remember the batch, the first time it is seen."""
        if self.online and strategy.clock.train_exp_epochs == 0:
            self.embedded.remember(strategy.mb_x, strategy.mb_y)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Remember the experience."""
        if not self.online:
            self.storage_policy.post_adapt(strategy, strategy.experience)

    def state_dict(self) -> State:
        """Memory and replay, as tensors and plain values."""
        return self.embedded.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self.embedded.load_state_dict(state)
