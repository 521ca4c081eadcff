"""Losses for labels that are trusted by degrees."""

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from sphere_replay.hosts.parts.cutmix import Mixed


def relabel(labels: Tensor, trust: Tensor, predicted: Tensor) -> Tensor:
    """Targets t onehot(y) + (1 - t) p: a label `[n]` counts as far as it is trusted `[n]`."""
    given = F.one_hot(labels, predicted.shape[1]).to(predicted)
    return torch.lerp(predicted, given, trust[:, None])


def consistency(weak: Tensor, strong: Tensor, *, on_logits: bool = False) -> Tensor:
    """Mean squared difference, over batch and classes, of two views' probabilities (or logits)."""
    if not on_logits:
        weak, strong = weak.softmax(dim=1), strong.softmax(dim=1)
    return F.mse_loss(strong, weak)


def mixed_cross_entropy(logits: Tensor, mixed: Mixed) -> Tensor:
    """Cross-entropy of mixed images: each of the two labels by its share of the area."""
    own = F.cross_entropy(logits, mixed.labels)
    other = F.cross_entropy(logits, mixed.other_labels)
    return mixed.share * own + (1 - mixed.share) * other
