"""A `Replay` inside the update of a framework that has model, optimizer and loop in its own hands.

embedded = EmbeddedReplay(500, batch=32, select="sphere", features="body")
embedded.follow(model, optimizer)            # whenever the framework shows them
embedded.add_gradient(loss, streamed=10)     # after the stream's backward, before the step
embedded.remember(x, y)                      # after the step
"""

from collections.abc import Callable
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from sphere_replay.allocation import Sphere
from sphere_replay.memory import Memory
from sphere_replay.randomness import generator_for
from sphere_replay.replay import Economy, Replay, Selection, selection_named
from sphere_replay.replay.backbone import FeatureSource, bare
from sphere_replay.replay.engine import Draw
from sphere_replay.scoring import Loss, cross_entropy_per_example
from sphere_replay.storage.trees import State


class ReplayOptions(TypedDict, total=False):
    """What `Replay` takes beside memory, model, optimizer and generator; see there."""

    select: str | Selection
    lr: float | None
    features: FeatureSource
    loss: Loss | None
    every: int | None
    pool: int | None
    replacement: bool
    unit_mass: bool
    prepare: Callable[[Tensor], Tensor] | None
    economy: Economy | None


class EmbeddedReplay:
    """Replay that is made when a framework first shows its model, and follows its optimizers.

    Args:
        memory: What to replay from, with the fields `x` and `y`; or the capacity of a reservoir.
        batch: Memories replayed in an update.
        seed: Of the streams of admission and replay.
        joint_batch: The loss is the mean over stream and replayed examples together, as most
            frameworks have it, instead of the sum of the two means.
        options: Those of `Replay`.
    """

    def __init__(
        self,
        memory: Memory | int,
        *,
        batch: int = 32,
        seed: int = 0,
        joint_batch: bool = False,
        **options: Unpack[ReplayOptions],
    ) -> None:
        if batch < 1:
            raise ValueError(f"batch counts replayed memories: at least 1, got {batch}")
        if not isinstance(memory, Memory):
            memory = Memory(memory, generator=generator_for(seed, "admission"))
        select = options.get("select", "sphere")
        if isinstance(select, str):
            selection_named(select, Sphere.vision())  # a wrong name is found before training
        self.memory = memory
        self.batch, self.joint_batch = batch, joint_batch
        self.loss: Loss = options.get("loss") or cross_entropy_per_example
        self.replay: Replay | None = None
        """Made by the first `follow`."""
        self._options = options
        self._generator = generator_for(seed, "replay")
        self._saved: State | None = None

    def follow(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Replay:
        """The replay for this model, with the optimizer that trains it now."""
        if self.replay is None:
            options = ReplayOptions(**self._options)
            options["prepare"] = self._prepared
            self.replay = Replay(
                self.memory,
                model=model,
                optimizer=optimizer,
                generator=self._generator,
                **options,
            )
            if self._saved is not None:
                self.replay.load_state_dict(self._saved)
                self._saved = None
        elif self.replay.model is not bare(model):
            raise ValueError(
                "this replay belongs to another model: make a new one, with a memory of its own or "
                "with the old one's"
            )
        self.replay.optimizer = optimizer
        return self.replay

    def start_task(self) -> None:
        """Rescore at the next draw."""
        if self.replay is not None:
            self.replay.start_task()

    def add_gradient(
        self,
        loss: Callable[[Tensor, Tensor], Tensor],
        streamed: int,
        view: Callable[[Tensor], Tensor] | None = None,
    ) -> Draw | None:
        """Add the replay gradient to that of the stream, which is in the parameters.

        Args:
            loss: Mean loss of inputs and targets, with gradients.
            streamed: Examples behind the stream gradient.
            view: Turns stored inputs into training inputs; as for scoring unless given.

        Returns:
            What was replayed; None while the memory is empty.
        """
        if len(self.memory) == 0:
            return None
        assert self.replay is not None, "follow() comes first"
        draw = self.replay.draw(self.batch)
        scale = draw.scale
        if self.joint_batch:
            share = len(draw) / (len(draw) + streamed)
            scale *= share
            for parameter in self.replay.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(1 - share)
        inputs = (view or self._prepared)(draw["x"])
        (scale * loss(inputs, draw["y"].to(inputs.device))).backward()  # type: ignore[no-untyped-call]  # torch's
        return draw

    def remember(self, x: Tensor, y: Tensor) -> None:
        """Offer a batch of the stream to the memory."""
        self.memory.add(x=x.detach(), y=y.detach())

    def _prepared(self, x: Tensor) -> Tensor:
        assert self.replay is not None
        own = self._options.get("prepare")
        return (x if own is None else own(x)).to(next(self.replay.model.parameters()).device)

    def state_dict(self) -> State:
        """Everything the next update depends on, apart from the model and its optimizer."""
        replay = self._saved if self.replay is None else self.replay.state_dict()
        return {"memory": self.memory.state_dict(), "replay": replay}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken, also before there is a model."""
        self.memory.load_state_dict(state["memory"])
        if self.replay is None or state["replay"] is None:
            self._saved = state["replay"]
        else:
            self.replay.load_state_dict(state["replay"])
