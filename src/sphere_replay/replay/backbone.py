"""Features and outputs of a model that is not ours, from whatever its owner can say about it."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sphere_replay.errors import unknown
from sphere_replay.scoring import Forward
from sphere_replay.scoring.folding import can_fold

FeatureSource = str | Callable[[Tensor], Any] | None
"""Name of a submodule, a function from inputs to (features, outputs), or nothing for models with
`forward_features`."""


def bare(model: nn.Module) -> nn.Module:
    """The model itself, without the wrappers of data parallelism."""
    while isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    return model


def forward_of(model: nn.Module, features: FeatureSource) -> Forward | None:
    """How to get features `[n, d]` and outputs of a model; None where scoring knows by itself."""
    if isinstance(features, str):
        return _HookedForward(model, features)
    if features is not None:
        return _checked(features, "the features function")
    name, own = type(model).__name__, getattr(model, "forward_features", None)
    if own is None:
        raise ValueError(
            f"{name} does not say what its features are: pass features='NAME' of "
            "the submodule whose output they are, or a function from inputs to (features, outputs)"
        )
    # Scoring folds batch norms by itself.
    return None if can_fold(model) else _checked(own, f"{name}.forward_features")


class _HookedForward:
    """Runs the model and takes what a submodule of it gives out."""

    def __init__(self, model: nn.Module, name: str) -> None:
        modules = dict(model.named_modules())
        if name not in modules or not name:
            raise ValueError(unknown("module", name, [known for known in modules if known]))
        self._model, self._module, self._name = model, modules[name], name

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        taken: list[Any] = []
        hook = self._module.register_forward_hook(lambda _, __, output: taken.append(output))
        try:
            outputs: Tensor = self._model(inputs)
        finally:
            hook.remove()
        if len(taken) != 1 or not isinstance(taken[0], Tensor):
            found = f"gave a {type(taken[0]).__name__}" if taken else "was not run"
            if len(taken) > 1:
                found = f"ran {len(taken)} times"
            raise ValueError(
                f"features={self._name!r} {found} in a forward pass: name a submodule that runs "
                "once and gives one tensor, or pass a function from inputs to (features, outputs)"
            )
        return pooled(taken[0]), outputs


def pooled(values: Tensor) -> Tensor:
    """Maps `[n, c, h, w]` averaged over their places, sequences `[n, t, d]` over their tokens."""
    if values.ndim > 3:
        return values.flatten(2).mean(dim=2)
    return values.mean(dim=1) if values.ndim == 3 else values


def _checked(features: Callable[[Tensor], Any], name: str) -> Forward:
    def forward(inputs: Tensor) -> tuple[Tensor, Tensor]:
        result = features(inputs)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError(
                f"{name} gave a {type(result).__name__}, but scoring needs both "
                "(features, outputs): a backbone alone has no loss; return the head's outputs too, "
                "or pass features='NAME' of a submodule"
            )
        return result

    return forward
