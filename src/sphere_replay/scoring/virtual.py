"""The virtual step θ^v = θ - η g_c: where the next update would take the model, and back again."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from sphere_replay.scoring.restoring import (
    forget_casts,
    gradients_aside,
    modules_restored,
    optimizer_restored,
    values_restored,
    writing,
)


@contextmanager
def virtual_step(
    model: nn.Module, lr: float, *, optimizer: torch.optim.Optimizer | None = None
) -> Iterator[None]:
    """Inside, `model` stands where one step along its gradients leads; afterward all is as before.

    The gradients are those in `.grad`, left there by `backward()` on the stream loss. Restored bit
    for bit, also when an exception passes through: parameters (in the same storage), buffers,
    gradients (the same objects; inside they are out of sight), the mode of every submodule,
    `requires_grad` flags and the optimizer. Parameters without a gradient, or frozen, do not move.

    Args:
        model: The model to move.
        lr: Step length η. With an optimizer it takes the place of every group's learning rate.
        optimizer: None for θ - η g_c, without momentum or weight decay. An optimizer makes one
            `step()` of its own on a copy of its state, for example the AdamW update that training
            would make.

    Raises:
        RuntimeError: if there is no gradient to follow.
    """
    if not (lr >= 0 and math.isfinite(lr)):
        raise ValueError(f"lr must be finite and not negative, got {lr}")
    moving = moving_parameters(model, optimizer)
    gradients = [_gradient(parameter) for parameter in moving]
    # The optimizer may hold parameters outside the model, and steps on frozen ones too if they
    # have a gradient left over: put every gradient aside, and hand out those to follow.
    parameters = _distinct([*model.parameters(), *_parameters_of(optimizer)])
    with (
        optimizer_restored(optimizer) if optimizer is not None else nullcontext(),
        gradients_aside(parameters),
        modules_restored(model),
        values_restored(moving),
    ):
        with writing():
            if optimizer is None:
                for parameter, gradient in zip(moving, gradients, strict=True):
                    parameter.add_(gradient, alpha=-lr)
            else:
                _step(optimizer, lr, moving, gradients)
        forget_casts()
        yield


def moving_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> list[nn.Parameter]:
    """The trainable parameters with a gradient that a step would change; at least one."""
    ready = [p for p in model.parameters() if p.requires_grad and p.grad is not None]
    if not ready:
        raise RuntimeError(
            "no trainable parameter of the model has a gradient: the virtual step follows the "
            "stream gradient; call loss.backward() on the stream batch first, and "
            "optimizer.zero_grad() only after scoring"
        )
    if optimizer is None:
        return ready
    held = [p for p in _parameters_of(optimizer) if p.requires_grad and p.grad is not None]
    if {id(p) for p in held}.isdisjoint(id(p) for p in ready):
        raise RuntimeError(
            "the optimizer holds none of the model's parameters that have a gradient: pass the "
            "optimizer that trains this model"
        )
    return _distinct(held)


def _step(
    optimizer: torch.optim.Optimizer,
    lr: float,
    parameters: Sequence[nn.Parameter],
    gradients: Sequence[Tensor],
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
    for parameter, gradient in zip(parameters, gradients, strict=True):
        # A copy, because a step may unscale or clip gradients in place.
        parameter.grad = gradient.clone()
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _parameters_of(optimizer: torch.optim.Optimizer | None) -> list[nn.Parameter]:
    groups = [] if optimizer is None else optimizer.param_groups
    return [parameter for group in groups for parameter in group["params"]]


def _distinct(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    return list({id(parameter): parameter for parameter in parameters}.values())
