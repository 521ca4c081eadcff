"""What allocations are compared on; of torch alone, so that any source tree can take part."""

import torch
from torch import Tensor


def inputs(size: int, dim: int) -> tuple[Tensor, Tensor]:
    """δ `[m]`, noise with a tenth of positive spikes, and standard normal h `[m, d]`."""
    generator = torch.Generator().manual_seed(size * 4096 + dim)
    features = torch.randn(size, dim, generator=generator)
    increments = 0.1 * torch.randn(size, generator=generator)
    spikes = torch.randperm(size, generator=generator)[: max(1, size // 10)]
    increments[spikes] += 1 + torch.rand(len(spikes), generator=generator)
    return increments, features
