"""X-DER's constraints: heads that an example does not belong to stay below its own, by a margin."""

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
