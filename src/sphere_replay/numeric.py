"""Small numerical conventions that every layer shares."""

import torch
from torch import Tensor

_GOLDEN = (5**0.5 - 1) / 2


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """float64 for everything that is only m numbers long, except where the device has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def spread(size: int, count: int) -> Tensor:
    """About `count` of `size` places, ascending, without a period that classes may come in."""
    if count >= size:
        return torch.arange(size, device="cpu")
    turns = torch.arange(count, dtype=torch.float64, device="cpu") * _GOLDEN % 1
    places: Tensor = torch.unique((turns * size).long())
    return places


def median(values: Tensor) -> float:
    """Median with the mean of the two middle values for even counts (torch takes the lower)."""
    lower = float(values.median())
    return lower if values.numel() % 2 else (lower - float((-values).median())) / 2


def percentile(values: Tensor, fraction: float) -> float:
    """Percentile by linear interpolation between order statistics, at any length."""
    position = fraction * (values.numel() - 1)
    below = int(position)
    around: list[float] = values.flatten().sort().values[below : below + 2].tolist()
    return around[0] + (around[-1] - around[0]) * (position - below)


def effective_sample_size(probabilities: Tensor) -> float:
    """ESS = 1 / Σ p_i² of a probability vector: m if uniform, 1 if all mass is on one memory."""
    precise = probabilities.to(accumulation_dtype(probabilities.device))
    return 1.0 / float(precise.square().sum())


def as_probabilities(weights: Tensor) -> Tensor:
    """Non-negative weights `[m]` divided by their sum; uniform if all are zero."""
    total = weights.sum()
    return weights / total if total > 0 else torch.full_like(weights, 1 / len(weights))
