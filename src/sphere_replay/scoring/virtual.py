"""The virtual step θ^v = θ - η g_c: where the next update would take the model, and back again."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from sphere_replay.scoring.restoring import (
    forget_casts,
    gradients_aside,
    modules_restored,
    optimizer_restored,
    own_storage,
    parameters_of,
    replaced,
    values_restored,
    writing,
)
from sphere_replay.scoring.sharding import local_parts, resharded


@contextmanager
def virtual_step(
    model: nn.Module, lr: float | None, *, optimizer: torch.optim.Optimizer | None = None
) -> Iterator[None]:
    """Inside, `model` stands where one step along its gradients leads; afterward all is as before.

    The gradients are those in `.grad`, left there by `backward()` on the stream loss. Restored bit
    for bit, also when an exception passes through: parameters (in the same storage), buffers,
    gradients (the same objects; inside they are out of sight), the mode of every submodule,
    `requires_grad` flags and the optimizer. Parameters without a gradient, or frozen, do not move.

    Args:
        model: The model to move.
        lr: Step length η. With an optimizer it takes the place of every group's learning rate, and
            None leaves those as they are.
        optimizer: None for θ - η g_c, without momentum or weight decay. An optimizer makes one
            `step()` of its own on a copy of its state, for example the AdamW update that training
            would make.

    Raises:
        RuntimeError: if there is no gradient to follow.
    """
    step = VirtualStep(model, lr, optimizer)
    with modules_restored(model), step.taken():
        yield


class VirtualStep:
    """A virtual step that has been checked and can be taken; buffers and modes are not its concern.

    `grad_scale` is the factor of a gradient scaler that is still in the gradients.

    Raises:
        RuntimeError: if there is no gradient to follow.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float | None,
        optimizer: torch.optim.Optimizer | None = None,
        grad_scale: float = 1.0,
    ) -> None:
        if lr is None and optimizer is None:
            raise ValueError("a virtual step needs a length: pass lr, or the optimizer to follow")
        if lr is not None and not (lr >= 0 and math.isfinite(lr)):
            raise ValueError(f"lr must be finite and not negative, got {lr}")
        with resharded(model):
            parameters = parameters_of(model)
        moving = _ready(parameters)
        if not moving:
            raise RuntimeError(
                "no trainable parameter of the model has a gradient: the virtual step follows the "
                "stream gradient; call loss.backward() on the stream batch first, and "
                "optimizer.zero_grad() only after scoring"
            )
        if optimizer is not None:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            own, moving = moving, _ready(held)
            if not _identities(own) & _identities(moving):
                raise RuntimeError(
                    "the optimizer holds none of the model's parameters that have a gradient: pass "
                    "the optimizer that trains this model"
                )
            known = _identities(parameters)
            parameters += [p for p in held if id(p) not in known]
        self._model = model
        self._lr = lr
        self._grad_scale = grad_scale
        self._optimizer = optimizer
        self._parameters = parameters
        self._moving = moving
        self._gradients = [p.grad for p in moving if p.grad is not None]
        self.device = moving[0].device

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Inside, the parameters have moved; afterward they, and the optimizer, are back."""
        gradients = self._gradients
        length = -(self._lr or 0.0) / self._grad_scale
        # An optimizer steps on every parameter it holds that has a gradient, also on a frozen one
        # with a gradient left over: put all gradients aside and hand out those to follow.
        with gradients_aside(self._parameters), resharded(self._model):
            if self._optimizer is not None:
                parts = local_parts(self._moving)
                with optimizer_restored(self._optimizer), values_restored(parts):
                    with writing():
                        self._update(self._optimizer)
                    forget_casts()
                    yield
            elif own_storage(self._parameters):
                with writing():
                    moved = torch._foreach_add(tuple(self._moving), gradients, alpha=length)
                with replaced(self._moving, moved):
                    yield
            else:
                parts = local_parts(self._moving)
                with values_restored(parts):
                    with writing():
                        torch._foreach_add_(parts, local_parts(gradients), alpha=length)
                    forget_casts()
                    yield

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        if self._lr is not None:
            for group in optimizer.param_groups:
                group["lr"] = self._lr
        for parameter, gradient in zip(self._moving, self._gradients, strict=True):
            # A copy, because a step may unscale or clip gradients in place.
            parameter.grad = gradient / self._grad_scale
        optimizer.step()
        for parameter in self._moving:
            parameter.grad = None


def _ready(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad and p.grad is not None]


def _identities(parameters: Sequence[nn.Parameter]) -> set[int]:
    return {id(parameter) for parameter in parameters}
