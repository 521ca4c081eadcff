"""The supervised contrastive loss: views of one class attract each other, all others repel."""

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor


def supervised_contrastive(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Loss of each of n examples, `[..., n]`, from v views of them, `[..., v, n, d]`.

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
