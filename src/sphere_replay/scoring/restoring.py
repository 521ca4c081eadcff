"""Contexts that put a model or an optimizer back bit for bit, also when an exception passes.

Values are saved and copied back into the storage they came from. Undoing a step by arithmetic would
not return to the same floating-point numbers, and exchanging the storage would leave views of it,
captured graphs and flattened weights behind.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter


@contextmanager
def values_restored(tensors: Sequence[Tensor]) -> Iterator[None]:
    """`tensors` may be written to inside; on leaving they hold their old values in their old place.

    Autograd counts writes to find graphs that outlived their tensors. Here the count returns with
    the values: a graph recorded before is still right and may be differentiated afterward, while
    one recorded inside belongs to other values and autograd refuses it.
    """
    with ExitStack() as counters:
        for tensor in tensors:
            counters.enter_context(_unsafe_preserve_version_counter(tensor))
        with writing():
            saved = [tensor.detach().clone() for tensor in tensors]
        try:
            yield
        finally:
            with writing():
                for tensor, values in zip(tensors, saved, strict=True):
                    tensor.copy_(values)
            forget_casts()


@contextmanager
def gradients_aside(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Inside, no parameter has a gradient; on leaving each has its own, the same object, again.

    Whatever is accumulated inside goes to new tensors and is dropped, so nothing needs copying.
    `requires_grad` flags are restored as well.
    """
    saved = [(parameter, parameter.grad, parameter.requires_grad) for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient, trainable in saved:
            parameter.requires_grad_(trainable)
            parameter.grad = gradient


@contextmanager
def modules_restored(model: nn.Module) -> Iterator[None]:
    """Buffers (batch-norm statistics and their counters) and the mode of every submodule return."""
    modules = list(model.modules())
    modes = [module.training for module in modules]
    # A module may write into a buffer or put another tensor in its place: undo both.
    slots = [dict(module._buffers) for module in modules]
    buffers = [buffer for buffer in model.buffers() if _writable(buffer)]
    with values_restored(buffers):
        try:
            yield
        finally:
            for module, training, slot in zip(modules, modes, slots, strict=True):
                # Not module.train(): that recurses, and may be overridden to keep layers frozen.
                module.training = training
                module._buffers.clear()
                module._buffers.update(slot)


@contextmanager
def optimizer_restored(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, the optimizer works on a copy of its state; on leaving it has the original back."""
    state, groups = optimizer.state, optimizer.param_groups
    original = dict(state)
    options = [(group, dict(group)) for group in groups]
    # Learning-rate schedulers leave a mark on the optimizer whose step() was called.
    attributes = dict(vars(optimizer))
    with writing():
        copies = {key: _copied(value) for key, value in original.items()}
    try:
        state.update(copies)
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(attributes)
        state.clear()
        state.update(original)
        groups[:] = [group for group, _ in options]
        for group, option in options:
            group.clear()
            group.update(option)


@contextmanager
def writing() -> Iterator[None]:
    """Writes to parameters are allowed, and tensors made here are ordinary ones.

    Only for the moments of saving, stepping and restoring: tensors made in an inference mode that
    the caller entered could not be written to after it.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


def forget_casts() -> None:
    """Autocast keeps low-precision copies of parameters and would not notice that they moved."""
    torch.clear_autocast_cache()


def _writable(buffer: Tensor) -> bool:
    """False for expanded tensors: several entries are one number, nobody can write to them."""
    return all(
        step != 0 or size < 2 for step, size in zip(buffer.stride(), buffer.shape, strict=True)
    )


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    return copy.deepcopy(value)
