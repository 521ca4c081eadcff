"""What a network thinks of stored examples: losses, features and logits in evaluation mode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sphere_replay.errors import DivergenceError
from sphere_replay.scoring import FoldedForward, Forward, cross_entropy_per_example
from sphere_replay.scoring.folding import can_fold

_CHUNK = 512


@dataclass(frozen=True, eq=False)
class Appraisal:
    """Of n examples, without a graph."""

    losses: Tensor
    """`[n]`: cross-entropy of the stored labels."""
    features: Tensor
    """`[n, d]`"""
    logits: Tensor
    """`[n, C]`"""


def appraise(
    network: nn.Module, images: Tensor, labels: Tensor, prepare: Callable[[Tensor], Tensor]
) -> Appraisal:
    """One pass over stored images `[n, ...]`; batch norms are folded where that is exact.

    The network is in training mode afterwards.
    """
    own: Any = network.forward_features
    forward: Forward = FoldedForward(network) if can_fold(network) else own
    network.eval()
    with torch.no_grad():
        outputs = [forward(prepare(part)) for part in torch.split(images, _CHUNK)]
    network.train()
    features, logits = (torch.cat(values) for values in zip(*outputs, strict=True))
    losses = cross_entropy_per_example(logits, labels)
    if not bool(losses.isfinite().all()):
        number = int((~losses.isfinite()).nonzero()[0])
        raise DivergenceError(f"the loss of stored example {number} is {float(losses[number])}")
    return Appraisal(losses, features, logits)
