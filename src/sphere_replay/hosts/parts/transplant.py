"""Logits of new heads for old memories: what X-DER writes into its memory after the fact."""

import torch
from torch import Tensor


def transplant(stored: Tensor, fresh: Tensor, labels: Tensor, block: slice, gamma: float) -> Tensor:
    """Stored logits `[n, C]` whose `block` of columns comes from fresh ones `[n, C]`.

    With g the stored logit of the label and M the largest fresh logit of the block, the block is
    taken as it is if M <= g, and scaled by γ g / M otherwise, so that the label stays on top. That
    works for g > 0 only: with g <= 0 < M the factor would turn the signs around, and with
    g < M <= 0 it would not get the block below g. Such rows keep the block they had.
    """
    own = stored.gather(1, labels[:, None])
    blocks = fresh[:, block]
    largest = blocks.amax(dim=1, keepdim=True)
    exceeds = largest > own
    factor = torch.where(exceeds & (own > 0), gamma * own / largest, 1.0)
    result = stored.clone()
    result[:, block] = torch.where(exceeds & (own <= 0), stored[:, block], blocks * factor)
    return result
