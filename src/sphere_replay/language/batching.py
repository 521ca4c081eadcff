"""Batches of at most so many padded tokens, of rows that are about equally long."""

from collections.abc import Sequence

import torch
from torch import Tensor

PADDING_LIMIT = 0.1
"""A batch is closed before more than this share of it would be padding."""


def token_batches(
    lengths: Sequence[int] | Tensor, budget: int, *, limit: float = PADDING_LIMIT
) -> list[Tensor]:
    """Indices of rows, batch by batch, the longest first.

    Args:
        lengths: Tokens of each row `[m]`.
        budget: Padded tokens a batch may have; a row that is longer is a batch of its own.
        limit: Largest share of padding in a batch.

    Returns:
        int64 tensors that together hold each of 0, ..., m - 1 once.
    """
    if budget < 1:
        raise ValueError(f"a batch needs a budget of at least one token, got {budget}")
    counts = torch.as_tensor(lengths, dtype=torch.int64).flatten()
    order = counts.sort(descending=True, stable=True).indices.tolist()
    sizes = counts.tolist()
    batches: list[list[int]] = []
    width = tokens = 0
    for index in order:
        size = max(sizes[index], 1)
        padded = width * (len(batches[-1]) + 1) if batches else 0
        if not batches or padded > budget or padded - tokens - size > limit * padded:
            batches.append([])
            width, tokens = size, 0
        batches[-1].append(index)
        tokens += size
    return [torch.tensor(batch, dtype=torch.int64) for batch in batches]


def padding_waste(lengths: Sequence[int] | Tensor, batches: Sequence[Tensor]) -> float:
    """Share of padding among all tokens of the batches: 1 - Σ length / Σ rows · width."""
    counts = torch.as_tensor(lengths, dtype=torch.int64).flatten()
    parts = [counts[batch] for batch in batches]
    padded = sum(len(part) * int(part.max()) for part in parts)
    return 1 - sum(int(part.sum()) for part in parts) / padded if padded else 0.0
