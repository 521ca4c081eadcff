"""X-DER's heads: how they are kept below an example's own, and how memories learn of new ones."""

import torch
from torch import Tensor


def future_constraint(
    logits: Tensor, own_heads: Tensor, task: int, head_size: int, margin: float
) -> Tensor:
    """How far the heads of tasks still to come reach above margin below an example's own head.

    With v = max(future logits) + margin - max(own head's logits), the mean of v over the rows with
    v > 0; 0 if there is none. `logits` `[n, C]`, `own_heads` int64 `[n]`, at most `task`.
    """
    heads = logits.reshape(len(logits), -1, head_size).amax(dim=2)
    own = heads.gather(1, own_heads[:, None]).squeeze(1)
    return mean_violation(heads[:, task + 1 :].amax(dim=1) + margin - own)


def past_constraint(logits: Tensor, first_class: int, margin: float) -> Tensor:
    """The same for classes before the present ones, in probabilities over all classes seen.

    `logits` `[n, seen]` of examples of the present task, whose classes start at `first_class`. Only
    the present ones are pushed: past probabilities are constants here.
    """
    probabilities = logits.softmax(dim=1)
    past = probabilities[:, :first_class].amax(dim=1).detach()
    return mean_violation(past + margin - probabilities[:, first_class:].amax(dim=1))


def mean_violation(excess: Tensor) -> Tensor:
    """The mean of the positive entries of `[n]`; 0 if there is none."""
    violated = excess > 0
    return torch.where(violated, excess, 0).sum() / violated.sum().clamp(min=1)


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
