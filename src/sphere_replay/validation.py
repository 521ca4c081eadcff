"""Input checks with errors for people: what was wrong, where, and what to do about it."""

import re
from dataclasses import fields, is_dataclass
from enum import StrEnum
from math import isfinite
from numbers import Integral

import torch
from torch import Tensor


class Choice(StrEnum):
    """Alternatives by name; one that does not exist is answered with those that do."""

    @classmethod
    def _missing_(cls, value: object) -> "Choice":
        raise ValueError(f"unknown {cls._called()} {value!r}; known: {', '.join(cls)}")

    @classmethod
    def _called(cls) -> str:
        """What it is an alternative of."""
        return re.sub(r"\B(?=[A-Z])", " ", cls.__name__).lower()


def check_increments(increments: Tensor) -> Tensor:
    """A finite vector of at least one loss change."""
    if not isinstance(increments, Tensor):
        raise TypeError(f"increments must be a torch.Tensor, got {type(increments).__name__}")
    if increments.ndim != 1:
        raise ValueError(
            f"increments must have shape [m], one loss change per memory, got "
            f"{list(increments.shape)}; use .flatten() or a per-example loss (reduction='none')"
        )
    if not increments.is_floating_point():
        raise ValueError(f"increments must be floating point, got {increments.dtype}")
    if increments.numel() == 0:
        raise ValueError("increments are empty: score at least one memory before allocating replay")
    increments = increments.detach()
    _check_finite("increments", increments, "the loss before or after the virtual step")
    return increments


def check_features(features: Tensor) -> Tensor:
    """A finite floating-point matrix with one row per memory."""
    if not isinstance(features, Tensor):
        raise TypeError(f"features must be a torch.Tensor, got {type(features).__name__}")
    if features.ndim != 2 or features.shape[1] == 0:
        raise ValueError(
            f"features must have shape [m, d] with d >= 1, got {list(features.shape)}; "
            "flatten everything after the first dimension"
        )
    if features.layout != torch.strided:
        raise ValueError(f"features must be dense, got {features.layout}; use .to_dense()")
    if not features.is_floating_point():
        raise ValueError(f"features must be floating point, got {features.dtype}; use .float()")
    features = features.detach()
    _check_finite("features", features, "the forward pass that produced them")
    return features


def check_cost_matrix(matrix: Tensor) -> Tensor:
    """A finite, non-negative, symmetric matrix with a zero diagonal."""
    matrix = check_features(matrix)
    rows, cols = matrix.shape
    if rows != cols:
        raise ValueError(f"a cost matrix must be square, got {rows} x {cols}")
    negative = (matrix < 0).nonzero()
    if len(negative):
        i, j = negative[0].tolist()
        raise ValueError(f"cost[{i}, {j}] = {float(matrix[i, j])} is negative; costs are distances")
    diagonal = matrix.diagonal().nonzero()
    if len(diagonal):
        i = int(diagonal[0])
        raise ValueError(
            f"cost[{i}, {i}] = {float(matrix[i, i])} must be 0: a memory's distance to itself"
        )
    tolerance = 16 * torch.finfo(matrix.dtype).eps * matrix.abs().max()
    skewed = ((matrix - matrix.T).abs() > tolerance).nonzero()
    if len(skewed):
        i, j = skewed[0].tolist()
        raise ValueError(
            f"the cost matrix is not symmetric: cost[{i}, {j}] = {float(matrix[i, j])}, "
            f"cost[{j}, {i}] = {float(matrix[j, i])}; average it with its transpose"
        )
    return matrix


def check_positive(**values: float) -> None:
    """Every named value is a finite number above zero."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def check_counts(least: int = 1, /, **values: int) -> None:
    """Every named value is a whole number, and large enough."""
    for name, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_fraction(**values: float) -> None:
    """Every named value lies in [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {value}")


def _check_finite(name: str, values: Tensor, origin: str) -> None:
    # A finite sum proves every entry finite in one pass; search only otherwise.
    if isfinite(float(values.sum(dtype=torch.float32))) or bool(values.isfinite().all()):
        return
    bad = (~values.isfinite()).nonzero()[0].tolist()
    value = float(values[tuple(bad)])
    where = ", ".join(map(str, bad))
    raise ValueError(
        f"{name}[{where}] = {value}: memory {bad[0]} is not finite; check {origin}, or "
        "leave that memory out of the scored set"
    )


def spelled(value: object) -> str:
    """`repr()` of a frozen value; of functions and plain objects the name.

    The same in every process, where theirs would tell an address.
    """
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{e.name}={spelled(getattr(value, e.name))}" for e in fields(value) if e.repr)
        return f"{type(value).__qualname__}({', '.join(parts)})"
    if type(value) is tuple:
        return f"({', '.join(map(spelled, value))}{',' * (len(value) == 1)})"
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    own = type(value).__repr__ is not object.__repr__
    return repr(value) if own else type(value).__qualname__
