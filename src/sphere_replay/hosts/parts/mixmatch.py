"""MixUp and MixMatch: trusted examples teach their labels, doubtful ones a guess about themselves.

Targets are probabilities throughout, and every view of an image carries the target of that image.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor


@dataclass(frozen=True, eq=False)
class MixedBatch:
    """Convex combinations of inputs and of their targets; n rows."""

    inputs: Tensor
    """`[n, ...]`."""
    targets: Tensor
    """`[n, C]`, rows sum to 1."""
    shares: Tensor
    """λ `[n]` in [1/2, 1]: how much of a row is its own."""


def mixup(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> MixedBatch:
    """Mix every row with another: λ row + (1 - λ) partner, λ ~ Beta(1/2, 1/2) folded to >= 1/2.

    Each row has a λ of its own and stays the larger part, so that it is still known which row is a
    trusted one.
    """
    count, here = len(inputs), generator.device
    uniforms = torch.rand(count, generator=generator, device=here)
    # The arcsine law: sin²(πu/2) is Beta(1/2, 1/2).
    shares = (torch.pi / 2 * uniforms).sin().square()
    shares = torch.maximum(shares, 1 - shares).to(inputs)
    partners = torch.randperm(count, generator=generator, device=here).to(inputs.device)
    wide = shares.view(-1, *[1] * (inputs.ndim - 1))
    return MixedBatch(
        torch.lerp(inputs[partners], inputs, wide),
        torch.lerp(targets[partners], targets, shares[:, None]),
        shares,
    )


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), rows summing to 1 again: T < 1 makes the likely likelier."""
    # By logarithms: a plain power of a small probability may underflow to a row of zeros.
    return (probabilities.clamp(min=1e-30).log() / temperature).softmax(dim=1)


def guess_targets(logits: Tensor, labels: Tensor, trust: Tensor, temperature: float) -> Tensor:
    """Targets `[n, C]` of doubtful images from the logits `[views, n, C]` of their views.

    w onehot(label) + (1 - w) sharpened mean prediction, with w `[n]` the trust in the label. The
    mean is over the views of the same image.
    """
    guesses = sharpen(logits.softmax(dim=-1).mean(dim=0), temperature)
    onehot = F.one_hot(labels, logits.shape[-1]).to(guesses.dtype)
    return torch.lerp(guesses, onehot, trust[:, None].to(guesses.dtype))


def mixmatch_loss(
    network: Callable[[Tensor], Tensor],
    trusted: tuple[Tensor, Tensor],
    doubtful: tuple[Tensor, Tensor],
    generator: torch.Generator,
    *,
    weight: float,
) -> Tensor:
    """CE(trusted) + weight * MSE(doubtful), after MixUp over all of them; one forward.

    Both are inputs `[n, ...]` with targets `[n, C]`; there may be no doubtful ones. The squared
    error is between probabilities, a mean over rows and classes.
    """
    mixed = mixup(
        torch.cat([trusted[0], doubtful[0]]), torch.cat([trusted[1], doubtful[1]]), generator
    )
    logits, count = network(mixed.inputs), len(trusted[0])
    loss = F.cross_entropy(logits[:count], mixed.targets[:count])
    if len(doubtful[0]) == 0:
        return loss
    error = F.mse_loss(logits[count:].softmax(dim=1), mixed.targets[count:])
    return loss + weight * error
