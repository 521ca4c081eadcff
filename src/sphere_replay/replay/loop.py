"""Replay for a training loop that is not ours.

replay = Replay(memory, select="sphere", model=model, features="layer4", optimizer=optimizer,
                every=4, generator=generator)
loss = criterion(model(x), y); loss.backward()        # the stream gradient
draw = replay.draw(32)                                # rescores when due; the model is untouched
(draw.scale * criterion(model(draw["x"]), draw["y"])).backward(); optimizer.step()
memory.add(x=x, y=y)
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sphere_replay.allocation import Sphere
from sphere_replay.errors import caution
from sphere_replay.memory import Memory
from sphere_replay.replay.backbone import FeatureSource, bare, forward_of, pooled
from sphere_replay.replay.economy import Economy
from sphere_replay.replay.engine import Draw, Engine
from sphere_replay.replay.reading import metrics_of
from sphere_replay.replay.selections import (
    MEMBERS,
    Selection,
    Weighting,
    selection_by,
    selection_named,
)
from sphere_replay.scoring import Loss, Scores, cross_entropy_per_example, score
from sphere_replay.scoring.restoring import finite_gradients, parameters_of
from sphere_replay.scoring.score import class_numbers
from sphere_replay.storage.trees import State
from sphere_replay.validation import spelled

_LONGEST_STEP = 10.0
"""A virtual step of so many times the weights' own length is no update but a scaled gradient."""


class Replay:
    """Draws from a memory by a selection, for a model that trains in a loop of its owner.

    Args:
        memory: What there is to replay.
        select: Name of a selection (`uniform`, `loss`, `mir`, `sphere`, ...), a selection, or a
            recipe.
        model: The model that trains; wrappers of data parallelism are looked through. Selections
            that score nothing (`uniform`) do without.
        generator: The only source of candidates, draws and shuffles.
        optimizer: Takes the virtual step, on a copy of its state. None: plain SGD of length `lr`.
        lr: Length of the virtual step; the optimizer's own learning rates unless given.
        features: Where features come from: the name of a submodule, a function from inputs to
            (features `[n, d]`, outputs), or nothing if the model has `forward_features`.
        loss: (outputs, targets) -> one loss per example `[n]`; cross-entropy unless given, which
            is for class labels only.
        scaler: A GradScaler whose factor is in the gradients, unless it has unscaled them.
        every: Rescore at every n-th draw, and at the first of each task; the selection's own
            interval unless given.
        pool: Score and draw from this many memories, chosen uniformly at each rescoring; None
            scores the whole memory.
        replacement: Draw with replacement.
        unit_mass: Ignore the mass s_w: `Draw.scale` is 1.
        inputs: The memory's field that the model takes.
        targets: The memory's field that the loss takes.
        prepare: Turns stored inputs into model inputs, such as uint8 images into floats.
        economy: Score less, see `Economy`.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        generator: torch.Generator,
        model: nn.Module | None = None,
        select: str | Selection | Sphere = "sphere",
        optimizer: torch.optim.Optimizer | None = None,
        lr: float | None = None,
        features: FeatureSource = None,
        loss: Loss | None = None,
        scaler: torch.amp.GradScaler | None = None,
        every: int | None = None,
        pool: int | None = None,
        replacement: bool = False,
        unit_mass: bool = False,
        inputs: str = "x",
        targets: str = "y",
        prepare: Callable[[Tensor], Tensor] | None = None,
        economy: Economy | None = None,
    ) -> None:
        if isinstance(select, str):
            select = selection_named(select, Sphere.vision())
        elif isinstance(select, Sphere):
            select = selection_by(select)
        elif not all(hasattr(select, member) for member in MEMBERS):
            raise TypeError(
                f"select must be the name of a selection, a selection or a recipe, got {select!r}"
            )
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {generator!r}")
        if not isinstance(economy, Economy | None):
            raise TypeError(f"economy must be an Economy, such as Economy(), got {economy!r}")
        if lr is not None and not 0 <= lr < math.inf:
            raise ValueError(f"lr must be finite and not negative, got {lr}")
        self.engine = Engine(
            memory,
            select,
            generator=generator,
            every=every,
            pool=pool,
            replacement=replacement,
            unit_mass=unit_mass,
            economy=economy,
        )
        self._model = None if model is None else bare(model)
        self._forward = None
        if select.needs_scores:
            if model is None:
                raise ValueError("memories are scored with the model that trains: pass model=")
            if optimizer is None and lr is None:
                raise ValueError(
                    "scoring looks one update ahead: pass optimizer=, or lr= for a step of SGD"
                )
            self._forward = forward_of(self.model, features)
        self.optimizer = optimizer
        """Put another in its place where a framework makes a new one for each task."""
        self._settings = {
            "select": spelled(select),
            "every": str(every),
            "pool": str(pool),
            "economy": str(economy),
        }
        self._lr, self._loss, self._scaler = lr, loss, scaler
        self._inputs, self._targets, self._prepare = inputs, targets, prepare
        self._warned = False

    @property
    def model(self) -> nn.Module:
        """What trains, without wrappers."""
        if self._model is None:
            raise ValueError("this replay scores nothing, and was made without a model")
        return self._model

    @property
    def memory(self) -> Memory:
        """What there is to replay."""
        return self.engine.memory

    @property
    def weighting(self) -> Weighting | None:
        """What draws are made by now, and the allocation it comes from; None before the first."""
        return self.engine.weighting

    def start_task(self) -> None:
        """Rescore at the next draw."""
        self.engine.start_task()

    def draw(self, count: int) -> Draw:
        """Memories to replay, after `backward()` on the stream loss."""
        scales = self._scaler is not None and self._scaler.is_enabled()
        if scales and self._model is not None and not finite_gradients(self._model):
            # The scaler is going to skip this update: whatever is drawn now changes nothing.
            return self.engine.draw_uniformly(count)
        return self.engine.draw(count, self._score, self._labels)

    def passed(self, what: Draw | Tensor, features: Tensor, losses: Tensor) -> None:
        """Hand on what a training pass computed anyway, for an economical schedule that reuses it.

        Features and losses, one of each for every example of a draw, or for those in the slots that
        `memory.add` has just returned.
        """
        self.engine.passed(what, pooled(features), losses)

    def forget_passes(self) -> None:
        """What was handed on is of no use: other weights were loaded, or stored inputs edited."""
        self.engine.forget_passes()

    def metrics(self) -> dict[str, float | str]:
        """What replay does at the moment; `summary` reads it in one sentence."""
        return metrics_of(self.engine)

    def state_dict(self) -> State:
        """Everything the next draw depends on, apart from the memory and the model."""
        return self.engine.state_dict() | {"settings": self._settings}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken; load the memory's state before."""
        self._check_settings(state)
        self.engine.load_state_dict(state)

    @property
    def mark(self) -> int:
        """This moment, for `changes`."""
        return self.engine.mark

    def changes(self, since: int) -> State:
        """What happened after a `mark`: counters, or the whole state if memories were scored.

        With the `state_dict()` of that moment it is everything needed to continue: weights of a
        large memory are saved once after each rescoring. What an economical schedule knows of
        training's passes is saved whole.
        """
        return self.engine.changes(since) | {"settings": self._settings}

    def apply_changes(self, changes: State) -> None:
        """Go on from the state that the changes follow; apply the memory's changes before."""
        self._check_settings(changes)
        self.engine.apply_changes(changes)

    def _check_settings(self, state: State) -> None:
        saved = state.get("settings", self._settings)
        differing = [
            f"{name}: saved {saved.get(name)}, now {value}"
            for name, value in self._settings.items()
            if saved.get(name) != value
        ]
        if differing:
            raise ValueError(
                f"this state is another replay's ({'; '.join(differing)}): weigh as it did, or go "
                "on with the memory and the model alone, and the next draw scores anew"
            )

    def _labels(self, slots: Tensor) -> Tensor | None:
        return class_numbers(self.memory[self._targets][slots.to(self.memory.device)])

    def _score(self, slots: Tensor, *, increments: bool = True) -> Scores:
        wanted = self.memory[self._targets]
        if self._loss is None and wanted.is_floating_point():
            raise ValueError(
                f"the targets in field {self._targets!r} are {wanted.dtype}, which cross-entropy "
                "would take for something else: pass loss=, one number per example "
                "(reduction='none')"
            )
        factor = _factor(self._scaler, self.optimizer)
        if factor == 1.0:
            self._notice_scaled_gradients()
        return score(
            self.model,
            self.memory[self._inputs],
            wanted,
            lr=self._lr,
            forward=self._forward,
            loss=self._loss or cross_entropy_per_example,
            optimizer=self.optimizer,
            grad_scale=factor,
            prepare=self._prepare,
            increments=increments,
            rows=slots.to(self.memory.device),
        )

    def _notice_scaled_gradients(self) -> None:
        if self._warned:
            return
        moved = [p for p in parameters_of(self.model) if p.grad is not None]
        if not moved:
            return  # scoring says what is missing
        rates = [self._lr] if self.optimizer is None or self._lr else _rates(self.optimizer)
        length = max(rate for rate in rates if rate is not None)
        step = length * _norm([p.grad for p in moved if p.grad is not None])
        own = _norm([p.detach() for p in moved])
        if step > _LONGEST_STEP * own > 0:
            self._warned = True
            caution(
                f"the update would move the weights by {step / own:.0f} times their own length: if "
                "a GradScaler has scaled the loss, pass it as scaler="
            )


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([value.float().norm() for value in tensors]).norm())


def _factor(scaler: Any, optimizer: torch.optim.Optimizer | None) -> float:
    """What a scaler has multiplied the gradients by, and not taken out again."""
    if scaler is None or not scaler.is_enabled():
        return 1.0
    states = scaler._per_optimizer_states
    if optimizer is not None and states[id(optimizer)]["stage"].name == "UNSCALED":
        return 1.0
    return float(scaler.get_scale())
