"""Increments of groups under the next update, and the gradient of those that are replayed.

Several processes each work on the groups they sampled. TRL's loss exchanges tensors, so they call
it equally often: who has fewer groups evaluates a spare one for company.
"""

from typing import Any

import torch
from torch import Tensor

from sphere_replay.integrations.transformers.zero import whole_optimizer
from sphere_replay.integrations.trl.groups import Group, SampledGroups, group_loss
from sphere_replay.language import Ranks
from sphere_replay.scoring import is_sharded, score_batches


class _Scored:
    """A group on its way through both evaluations."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.pinned: Tensor | None = None
        """Log-probabilities at θ, which the first evaluation leaves to the second."""


def score_groups(
    trainer: Any,
    ranks: Ranks,
    candidates: SampledGroups,
    places: Tensor,
    *,
    lr: float | None = None,
) -> tuple[Tensor, Tensor]:
    """δ_i = L(θ^v; G_i) - L(θ; G_i) with programs and advantages fixed, and L(θ; G_i).

    θ^v is where a step of the trainer's own optimizer along the stream gradient leads; model and
    optimizer are left bit for bit as they were. The denominator of the ratios stays at θ in both
    evaluations: the first one's ratios are 1, and it notes what the second is measured against.

    Args:
        trainer: The trainer, inside `books_aside`.
        ranks: The processes.
        candidates: The groups.
        places: Which of them to score, int64 `[m]`.
        lr: Length of the step; the optimizer's current learning rate unless given.

    Returns:
        Increments and losses, `[m]` each, the same on all processes.
    """
    mine, dummies = _share(ranks, places)
    optimizer = whole_optimizer(trainer.optimizer)
    if lr is None:
        lr = float(optimizer.param_groups[0]["lr"])

    def evaluate(scored: _Scored) -> tuple[None, Tensor]:
        with trainer.log_probabilities_noted() as noted:
            loss = group_loss(trainer, scored.group, scored.pinned)
        if scored.pinned is None:
            (scored.pinned,) = noted
        return None, loss.detach().float().reshape(1)

    asked = [candidates.own[int(places[index])] for index in mine] + [candidates.spare] * dummies
    scores = score_batches(
        trainer.model, [_Scored(group) for group in asked], evaluate, lr=lr, optimizer=optimizer
    )

    def whole(values: Tensor) -> Tensor:
        return ranks.spread(values[: len(mine)].cpu(), mine, len(places))

    return whole(scores.increments), whole(scores.losses)


def replay_gradient(
    trainer: Any,
    ranks: Ranks,
    candidates: SampledGroups,
    places: Tensor,
    shares: Tensor,
    *,
    strength: float = 1.0,
) -> float:
    """Add the gradient of λ Σ share_i L(θ; G_i) to `.grad`; returns the sum, without λ.

    Nothing divides it: neither the number of processes nor that of accumulated micro-batches.

    Args:
        trainer: The trainer, inside `books_aside`.
        ranks: The processes.
        candidates: The groups.
        places: Which of them, int64 `[k]`, each once.
        shares: How much of the replay each is `[k]`; they add up to 1.
        strength: λ.
    """
    sharded = is_sharded(trainer.model)

    def backward(factor: float) -> float:
        value = 0.0
        mine, dummies = _share(ranks, places)
        for index in mine:
            group = candidates.own[int(places[index])]
            loss = group_loss(trainer, group) * float(shares[index])
            torch.autograd.backward(loss * (strength * factor))
            value += float(loss.detach())
        for _ in range(dummies):
            with torch.set_grad_enabled(sharded):
                loss = group_loss(trainer, candidates.spare)
            if sharded:
                torch.autograd.backward(loss * 0.0)
        return value

    return ranks.add_gradients(trainer.model, backward)


def _share(ranks: Ranks, places: Tensor) -> tuple[list[int], int]:
    """Indices into `places` of this process's groups, and how many calls it adds to them."""
    owners = places % ranks.world  # as `Ranks.share` deals them out
    mine = (owners == ranks.rank).nonzero()[:, 0].tolist()
    return mine, int(torch.bincount(owners).max()) - len(mine)
