"""Replay at the end of an update, also under ZeRO-1 and 2 of DeepSpeed.

ZeRO spreads optimizer state and gradients over the processes; parameters are whole on each. Its
engine takes the optimizer's step inside the trainer's backward, and until then it keeps averaged
gradients, a part on each process. So replay comes right before that step: the parts are put
together in `.grad`, where replay follows and adds to them as ever, and are handed back.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]  # has no types
from torch import nn


@contextmanager
def at_update_end(accelerator: Any, act: Callable[[], None]) -> Iterator[None]:
    """The block is a micro-batch; after the last one of an update, `act` sees the gradient."""
    wrapper = getattr(accelerator, "deepspeed_engine_wrapped", None)
    if wrapper is None:
        yield
        if accelerator.sync_gradients:
            act()
        return
    engine = wrapper.engine
    step = engine.step

    def act_and_step(*args: Any, **options: Any) -> Any:
        with _whole_gradients(engine):
            act()
        return step(*args, **options)

    engine.step = act_and_step
    try:
        yield
    finally:
        del engine.step


def whole_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The bare optimizer of the model's own parameters, with whole moments; for virtual steps.

    accelerate wraps one. ZeRO has another, of flat parts of the parameters.
    """
    zero: Any = getattr(optimizer, "optimizer", None)
    if zero is None:
        return optimizer
    if not hasattr(zero, "single_partition_of_fp32_groups"):
        return whole_optimizer(zero)
    from deepspeed.utils import safe_get_full_optimizer_state

    if zero.state:
        zero._lazy_init_hp_params_optimizer_state()  # after a resume nobody has done so yet
    spread: torch.optim.Optimizer = zero.optimizer
    whole = copy.copy(spread)
    whole.state, whole.param_groups = defaultdict(dict), []
    for group, parameters in zip(spread.param_groups, zero.bit16_groups, strict=True):
        whole.param_groups.append({**group, "params": parameters})
        (flat,) = group["params"]
        for parameter in parameters:
            whole.state[parameter] = {
                name: safe_get_full_optimizer_state(parameter, name)
                if getattr(value, "shape", None) == flat.shape
                else value
                for name, value in spread.state[flat].items()
            }
    return whole


def check_zero() -> None:
    """Refuse what DeepSpeed does beyond spreading optimizer state and gradients."""
    plugin = _plugin()
    if plugin is None:
        return
    if plugin.zero_stage not in (1, 2):
        raise ValueError(
            f"replay works with ZeRO-1 and 2 of DeepSpeed, not with stage {plugin.zero_stage}: to "
            "spread parameters too, use FSDP2 (fsdp=True, fsdp_config={'version': 2})"
        )
    if plugin.hf_ds_config.get_value("fp16.enabled") is True:
        raise ValueError(
            "fp16 of DeepSpeed scales gradients by a factor of its own: use bf16=True, or neither"
        )
    if plugin.hf_ds_config.is_offload():
        raise ValueError(
            "DeepSpeed keeps offloaded gradients where replay cannot add to them: leave "
            "offload_optimizer out of its configuration"
        )


def refuse_zero(who: str, reason: str) -> None:
    """For those who cannot replay right before the engine's step."""
    if _plugin() is not None:
        raise ValueError(f"{who} does not work with DeepSpeed, {reason}")


def _plugin() -> Any:
    """DeepSpeed's part of the accelerator, whoever has asked for it; None without DeepSpeed."""
    known = AcceleratorState._shared_state
    return AcceleratorState().deepspeed_plugin if known else None


@contextmanager
def _whole_gradients(engine: Any) -> Iterator[None]:
    """Inside, `.grad` holds the averaged gradients; what it then holds is stepped along."""
    from deepspeed.utils import safe_get_full_grad, safe_set_full_grad

    parameters = [p for p in engine.module.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.grad = safe_get_full_grad(parameter).to(parameter.dtype)
    with (
        _unheard(parameters),
        torch.autocast(
            engine.device.type,
            engine.torch_autocast_dtype(),
            enabled=engine.torch_autocast_enabled(),
        ),
    ):
        yield
    for parameter in parameters:
        # Taken away first: where a parameter has a gradient, DeepSpeed would write there.
        gradient, parameter.grad = parameter.grad, None
        safe_set_full_grad(parameter, gradient)


@contextmanager
def _unheard(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Inside, gradients are accumulated without DeepSpeed noticing, who would spread them."""
    hooks: list[Any] = [parameter._post_accumulate_grad_hooks for parameter in parameters]
    kept = [(each, dict(each)) for each in hooks if each]
    for each, _ in kept:
        each.clear()
    try:
        yield
    finally:
        for each, own in kept:
            each.update(own)
