"""CutMix: a box of every image is replaced by the same box of another image of the batch."""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor


class Mixed(NamedTuple):
    """Mixed images; the loss is share * CE(labels) + (1 - share) * CE(other_labels)."""

    images: Tensor
    labels: Tensor
    other_labels: Tensor
    share: float
    """Area that still belongs to the image itself, exactly as cut."""


def cutmix(images: Tensor, labels: Tensor, generator: torch.Generator) -> Mixed:
    """Mix images `[n, c, h, w]` by a box of area 1 - λ, λ ~ U(0, 1), clipped at the border."""
    height, width = images.shape[-2:]
    kept, row, col = torch.rand(3, generator=generator).tolist()
    half_height, half_width = (int(side * (1 - kept) ** 0.5) // 2 for side in (height, width))
    row, col = int(row * height), int(col * width)
    top, bottom = max(row - half_height, 0), min(row + half_height, height)
    left, right = max(col - half_width, 0), min(col + half_width, width)
    partner = torch.randperm(len(images), generator=generator)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images[partner][..., top:bottom, left:right]
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return Mixed(mixed, labels, labels[partner], share)


def cutmix_sometimes(
    images: Tensor, labels: Tensor, generator: torch.Generator, probability: float
) -> Mixed:
    """`cutmix` with this probability; otherwise the images as they are."""
    if torch.rand((), generator=generator) < probability:
        return cutmix(images, labels, generator)
    return Mixed(images, labels, labels, 1.0)


def mixed_cross_entropy(logits: Tensor, mixed: Mixed) -> Tensor:
    """Cross-entropy of mixed images: each of the two labels by its share of the area."""
    own = F.cross_entropy(logits, mixed.labels)
    other = F.cross_entropy(logits, mixed.other_labels)
    return mixed.share * own + (1 - mixed.share) * other
