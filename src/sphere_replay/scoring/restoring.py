"""Contexts that put a model or an optimizer back bit for bit, also when an exception passes.

Values are saved and copied back into the storage they came from. Undoing a step by arithmetic would
not return to the same floating-point numbers, and exchanging the storage leaves views of it,
captured graphs and flattened weights behind; it is done only where these are not to be expected.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeGuard

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
    with _unsafe_preserve_version_counter(tuple(tensors)):
        with writing():
            saved = [tensor.detach().clone() for tensor in tensors]
        try:
            yield
        finally:
            with writing():
                torch._foreach_copy_(list(tensors), saved)
            forget_casts()


@contextmanager
def replaced(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the parameters hold the given values in the given storage; nothing is copied.

    Only for parameters that `own_storage` says may be treated so. Graphs behave as described for
    `values_restored`.
    """
    originals = [parameter.data for parameter in parameters]
    versions = [parameter._version for parameter in parameters]
    torch.autograd.graph.increment_version(parameters)
    try:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value
        forget_casts()
        yield
    finally:
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.data = original
        torch._C._autograd._unsafe_set_version_counter(tuple(parameters), tuple(versions))
        forget_casts()


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """`model.parameters()`, which puts together names as well, without them: each once."""
    held = (parameter for module in model.modules() for parameter in module._parameters.values())
    return list(dict.fromkeys(parameter for parameter in held if parameter is not None))


def finite_gradients(model: nn.Module) -> bool:
    """Whether every gradient that is there is a number throughout."""
    gradients = [p.grad for p in parameters_of(model) if p.grad is not None]
    return all(bool(gradient.isfinite().all()) for gradient in gradients)


def own_storage(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether nobody can notice that parameters change their storage for a while.

    True for plain tensors on the processor, each alone in its memory; accelerators may have
    captured addresses.
    """
    places = set()
    for parameter in parameters:
        if (
            type(parameter) is not nn.Parameter
            or not parameter.is_cpu
            or parameter.layout != torch.strided
            or parameter.untyped_storage().nbytes() != parameter.nbytes
        ):
            return False
        places.add(parameter.untyped_storage().data_ptr())
    return len(places) == len(parameters)


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
            if parameter.requires_grad != trainable:
                parameter.requires_grad_(trainable)
            parameter.grad = gradient


@contextmanager
def modules_restored(model: nn.Module, *, training: bool | None = None) -> Iterator[None]:
    """Modes of all submodules and buffers, such as batch-norm statistics and counters, return.

    Inside, the mode is the one given, or as it was.
    """
    # A module may write into a buffer or put another tensor in its place: undo both.
    kept = [(m, m.training, m._buffers, dict(m._buffers)) for m in model.modules()]
    buffers = {id(b): b for _, _, _, saved in kept for b in saved.values() if _held(b)}
    with values_restored(list(buffers.values())) if buffers else nullcontext():
        try:
            if training is not None and any(mode != training for _, mode, _, _ in kept):
                model.train(training)
            yield
        finally:
            for module, mode, slot, saved in kept:
                # Not module.train(): that recurses, and may be overridden to keep layers frozen.
                if module.training != mode:
                    module.training = mode
                if slot or saved:
                    slot.clear()
                    slot.update(saved)


@contextmanager
def random_state_restored(device: torch.device) -> Iterator[Callable[[], None]]:
    """The global random state of the processor and of `device` return; inside, whenever asked."""
    processor = torch.default_generator
    state = processor.get_state()
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        processor.set_state(state)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)

    try:
        yield rewind
    finally:
        rewind()


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


def writing() -> AbstractContextManager[None]:
    """Writes to parameters are allowed, and tensors made here are ordinary ones.

    Only for the moments of saving, stepping and restoring: tensors made in an inference mode that
    the caller entered could not be written to after it.
    """
    return _outside_inference() if torch.is_inference_mode_enabled() else torch.no_grad()


def forget_casts() -> None:
    """Autocast keeps low-precision copies of parameters and would not notice that they moved."""
    torch.clear_autocast_cache()


@contextmanager
def _outside_inference() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


def _held(buffer: Tensor | None) -> TypeGuard[Tensor]:
    """False for None and for expanded tensors, to which nobody can write."""
    return buffer is not None and all(
        step != 0 or size < 2 for step, size in zip(buffer.stride(), buffer.shape, strict=True)
    )


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    return copy.deepcopy(value)
