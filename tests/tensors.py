"""Seeded generators and random tensors shared by the tests, never from the global generator."""

import math

import torch
from torch import Tensor


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal."""
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def random_memories(
    size: int, dim: int, *, seed: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Features `[size, dim]`, then increments `[size]`, standard normal, from one generator."""
    generator = seeded(seed)
    features = torch.randn(size, dim, generator=generator, dtype=dtype)
    return features, torch.randn(size, generator=generator, dtype=dtype)


def standard_error(values: Tensor) -> float:
    """Of the mean of independent values `[n]`."""
    return float(values.std()) / math.sqrt(len(values))
