"""Increments of token sequences, each asked on one process and known on all."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from sphere_replay.language.batching import token_batches
from sphere_replay.language.examples import Examples
from sphere_replay.language.memory import TokenMemory
from sphere_replay.language.ranks import Ranks
from sphere_replay.scoring import Scores, is_sharded, score_batches


def score_rows(
    model: nn.Module,
    memory: TokenMemory,
    slots: Tensor,
    examples: Examples,
    *,
    lr: float | None,
    grad_scale: float = 1.0,
    token_budget: int,
    ranks: Ranks,
    increments: bool = True,
) -> Scores:
    """Scores of the memories in the slots `[m]`, the same on all processes.

    Args:
        model: The model, with the stream gradient in its parameters' `.grad`.
        memory: What is scored.
        slots: Which of it, int64 `[m]`.
        examples: What its rows are.
        lr: Length of the virtual SGD step.
        grad_scale: The factor of a gradient scaler that is still in `.grad`.
        token_budget: Padded tokens in a batch.
        ranks: The processes that share the work.
        increments: False for losses and features alone, of one forward.
    """
    lengths = memory.lengths(slots)
    # By length, so that processes have about as much to do and rows that fit together.
    order = lengths.sort(descending=True, stable=True).indices
    # A process for which nothing is left scores something: it must learn the features' width.
    mine = ranks.share(order)
    asked = mine if len(mine) else order[:1]
    parts = token_batches(lengths[asked], token_budget)
    device = next(model.parameters()).device
    batches = [examples.batch(memory.rows(slots[asked[part]]), device) for part in parts]
    if is_sharded(model):
        # A forward gathers parameters from all processes, so they need as many: some for company.
        batches += batches[-1:] * (ranks.largest(len(parts)) - len(parts))
    own = score_batches(
        model,
        batches,
        lambda batch: examples.evaluate(model, batch),
        lr=lr,
        grad_scale=grad_scale,
        increments=increments,
    )
    places = asked[torch.cat(parts)][: len(mine)]

    def whole(values: Tensor) -> Tensor:
        return ranks.spread(values[: len(mine)], places, len(slots))

    assert own.features is not None  # features_and_losses gives both
    return replace(
        own,
        increments=whole(own.increments),
        losses=whole(own.losses),
        features=whole(own.features),
        labels=memory.answers(slots),
    )
