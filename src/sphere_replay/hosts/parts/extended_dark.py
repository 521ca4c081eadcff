"""What X-DER is made of: its heads' constraints and transplants, SupCon, quiet batch norms."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


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


def supervised_contrastive(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Views of one class attract each other, all others repel.

    Loss of each of n examples, `[..., n]`, from v views of them, `[..., v, n, d]`.

    With unit features z, every view a is an anchor; its positives P are the other views of its
    class, and A are all views but itself:

        l(a) = -1/|P| Σ_{p in P} log( exp(z_a·z_p / T) / Σ_{b in A} exp(z_a·z_b / T) )

    The loss of an example is the mean over its views; 0 where a view has no positive. Leading
    dimensions are independent problems with the same labels `[n]`.
    """
    views, count = features.shape[-3:-1]
    units = F.normalize(features.flatten(-3, -2), dim=-1)
    similarities = units @ units.transpose(-2, -1) / temperature
    itself = torch.eye(views * count, dtype=torch.bool, device=features.device)
    # Not -inf: a view that is alone would have no finite total, and 0 times that is no number.
    lowest = torch.finfo(similarities.dtype).min
    totals = similarities.masked_fill(itself, lowest).logsumexp(dim=-1)
    repeated = labels.repeat(views)
    positive = ((repeated[:, None] == repeated) & ~itself).to(features.dtype)
    positives = positive.sum(dim=-1)
    attracted = (similarities * positive).sum(dim=-1) / positives.clamp(min=1)
    # Without any positive there is nothing to be attracted to, and no reason to repel.
    losses = (totals - attracted) * (positives > 0)
    return losses.reshape(*losses.shape[:-1], views, count).mean(dim=-2)


@contextmanager
def frozen_statistics(network: nn.Module, frozen: bool = True) -> Iterator[None]:
    """Inside, batch norms in training mode do not learn what their batches look like.

    Running means, variances and counters stay as they are, also after an error; nothing else
    changes. `frozen=False` changes nothing at all.
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    tracked = [norm for norm in norms if norm.track_running_stats] if frozen else []
    try:
        for norm in tracked:
            norm.track_running_stats = False
        yield
    finally:
        for norm in tracked:
            norm.track_running_stats = True
