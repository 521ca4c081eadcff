"""A faster eval-mode forward: batch norms folded into the convolutions before them.

In eval mode a batch norm is an affine map per channel, γ(x - μ)/sqrt(σ² + ε) + β, which the
convolution before it can carry in its weights: W' = W·s and b' = β + (b - μ)·s with
s = γ/sqrt(σ² + ε). Half the passes over the activations disappear, and channels-last convolutions
need no reordering in between.
"""

import copy
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sphere_replay.numeric import accumulation_dtype
from sphere_replay.scoring.restoring import writing

FOLDED_CHUNK = 64
"""Images at a time; their activations then still fit a processor's cache."""


@runtime_checkable
class FoldableModel(Protocol):
    """A network that says which batch norm directly follows which convolution."""

    def forward_features(self, x: Tensor, /) -> tuple[Tensor, Tensor]:
        """Features `[n, d]` and logits `[n, C]` of inputs `[n, ...]`."""
        ...

    def conv_bn_pairs(self) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
        """Every convolution whose output goes to one batch norm and nowhere else, with it."""
        ...


class FoldedForward:
    """`model.forward_features` in eval mode, computed by a private copy without batch norms.

    Its weights are the model's at the last `refresh()`, which the first call makes if nobody has;
    the model itself is only read. Outputs equal those of the model's own eval forward up to the
    rounding of a few sums.

    Args:
        model: An `nn.Module` that declares its `conv_bn_pairs()`.
        chunk: Images to run at a time.

    Raises:
        ValueError: if a declared pair cannot be folded, saying why.
    """

    def __init__(self, model: nn.Module, *, chunk: int = FOLDED_CHUNK) -> None:
        if not isinstance(model, FoldableModel):
            raise TypeError(
                f"{type(model).__name__} cannot be folded: it needs the methods forward_features() "
                "and conv_bn_pairs()"
            )
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        names = {module: name for name, module in model.named_modules()}
        pairs = model.conv_bn_pairs()
        _check_declaration(pairs, names)
        for conv, bn in pairs:
            if reason := _obstacle(conv, bn):
                raise ValueError(f"cannot fold {names[bn]} into {names[conv]}: {reason}")
        self._model = model
        self._chunk = chunk
        self._names = [(names[conv], names[bn]) for conv, bn in pairs]
        self._copy = _emptied(model)
        for conv_name, bn_name in self._names:
            folded = self._copy.get_submodule(conv_name)
            # Own tensors even where the model ties this weight to another layer's.
            weight = torch.empty_like(
                folded.get_parameter("weight"), memory_format=torch.channels_last
            )
            folded.weight = nn.Parameter(weight, requires_grad=False)
            folded.bias = nn.Parameter(weight.new_empty(len(weight)), requires_grad=False)
            parent, _, attribute = bn_name.rpartition(".")
            setattr(self._copy.get_submodule(parent), attribute, nn.Identity())
        self._copy.eval()
        self._filled = False

    def refresh(self) -> None:
        """Take over the model's current weights and batch-norm statistics."""
        with writing():
            current = _tensors(self._model)
            for conv_name, bn_name in self._names:
                conv, bn = (self._model.get_submodule(name) for name in (conv_name, bn_name))
                current |= _folded(conv, bn, conv_name)
            for name, tensor in _tensors(self._copy).items():
                tensor.copy_(current[name])
        self._filled = True

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features `[n, d]` and logits `[n, C]` of inputs `[n, channels, height, width]`."""
        if not self._filled:
            self.refresh()
        with torch.inference_mode():
            starts = range(0, max(len(inputs), 1), self._chunk)
            outputs = [self._forward(inputs[start : start + self._chunk]) for start in starts]
        # Joined outside: tensors of the inference mode could not be written to by the caller.
        features, logits = zip(*outputs, strict=True)
        return torch.cat(features), torch.cat(logits)

    def _forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        assert isinstance(self._copy, FoldableModel)
        return self._copy.forward_features(inputs)


def can_fold(model: nn.Module) -> bool:
    """Whether `model` declares pairs and all of them are plain enough to be folded exactly."""
    # A look-up first, in the class, where a miss is cheap: a small network's forward is short.
    return (
        hasattr(type(model), "conv_bn_pairs")
        and isinstance(model, FoldableModel)
        and not any(_obstacle(conv, bn) for conv, bn in model.conv_bn_pairs())
    )


def _folded(conv: nn.Module, bn: nn.Module, name: str) -> dict[str, Tensor]:
    """Weight and bias of convolution `name` with the batch norm in them."""
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(bn, nn.BatchNorm2d)
    assert bn.running_mean is not None
    assert bn.running_var is not None
    precise = accumulation_dtype(conv.weight.device)
    scale = (bn.running_var.to(precise) + bn.eps).rsqrt()
    shift = -bn.running_mean.to(precise)
    if conv.bias is not None:
        shift = shift + conv.bias
    if bn.affine:
        scale = scale * bn.weight
    shift = shift * scale
    if bn.affine:
        shift = shift + bn.bias
    weight = conv.weight * scale.to(conv.weight.dtype)[:, None, None, None]
    return {f"{name}.weight": weight, f"{name}.bias": shift}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; a tied one under each of its names."""
    parameters: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    return parameters | dict(model.named_buffers(remove_duplicate=False))


def _emptied(model: nn.Module) -> nn.Module:
    """The same modules with tensors of their own; values and gradients are not copied."""
    own: dict[int, Tensor] = {}
    with writing():
        for parameter in model.parameters():
            own[id(parameter)] = nn.Parameter(torch.empty_like(parameter), requires_grad=False)
        for buffer in model.buffers():
            own[id(buffer)] = torch.empty_like(buffer)
    return copy.deepcopy(model, own)


def _check_declaration(
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]], names: dict[nn.Module, str]
) -> None:
    """Every module is the model's own and stands in one pair; the channels agree."""
    seen: set[nn.Module] = set()
    for position, (conv, bn) in enumerate(pairs):
        for module in (conv, bn):
            if module not in names:
                raise ValueError(
                    f"conv_bn_pairs()[{position}] has a {type(module).__name__} that is not a "
                    "submodule of the model"
                )
            if module in seen:
                raise ValueError(f"conv_bn_pairs() names {names[module]} twice; fold it only once")
            seen.add(module)
        if conv.out_channels != bn.num_features:
            raise ValueError(
                f"conv_bn_pairs()[{position}]: {names[conv]} has {conv.out_channels} channels but "
                f"{names[bn]} {bn.num_features}; pair each convolution with the norm after it"
            )


def _obstacle(conv: nn.Conv2d, bn: nn.BatchNorm2d) -> str | None:
    """Why this pair must be computed as it is; None if it can be folded.

    Subclasses and parametrizations may compute something else, and hooks may want to see or change
    what passes between the two.
    """
    if type(conv) is not nn.Conv2d or type(bn) is not nn.BatchNorm2d:
        found = f"{type(conv).__name__} and {type(bn).__name__}"
        return f"only plain Conv2d and BatchNorm2d fold, not {found}"
    if bn.running_mean is None or bn.running_var is None:
        return "the batch norm keeps no running statistics and uses those of the batch"
    if conv.weight.dtype not in (torch.float32, torch.float64):
        return f"{conv.weight.dtype} is too coarse to hold both in one weight"
    if any(module._forward_hooks or module._forward_pre_hooks for module in (conv, bn)):
        return "one of them has forward hooks"
    return None
