"""Frozen embeddings of the training prompts: where problems lie relative to one another."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from sphere_replay.errors import DataError
from sphere_replay.integrations.trl.problems import PROMPT, Problems
from sphere_replay.language import Ranks, token_batches
from sphere_replay.language.forward import states_picked
from sphere_replay.language.rows import pad_prompts
from sphere_replay.scoring import is_sharded, resharded
from sphere_replay.scoring.restoring import modules_restored, random_state_restored

_BUDGET = 8192
"""Padded tokens in a batch."""


def prompt_embeddings(trainer: Any, problems: Problems, ranks: Ranks) -> Tensor:
    """States after the last layer of the base model, averaged over prompt tokens; `[problems, d]`.

    Prompts are tokenized as for sampling. Adapters are switched off; the model, its mode and the
    random state are left as they were. Each process embeds its share.
    """
    prompts = list(trainer.train_dataset.select(problems.rows)[PROMPT])
    tokens: list[list[int]] = trainer._tokenize_prompts(prompts)[0]
    lengths = torch.tensor([len(ids) for ids in tokens])
    if not bool(lengths.all()):
        empty = problems.names[int((lengths == 0).nonzero()[0])]
        raise DataError(f"the prompt of problem {empty!r} has no tokens: leave it out, or fill it")
    model = trainer.model
    device = next(model.parameters()).device
    mine = ranks.share(torch.arange(len(tokens)))
    # A process for which nothing is left embeds something: it must learn the width.
    asked = mine if len(mine) else torch.tensor([0])
    parts = token_batches(lengths[asked], _BUDGET)
    if is_sharded(model):
        # A forward gathers parameters from all processes, so they need as many: some for company.
        parts += parts[-1:] * (ranks.largest(len(parts)) - len(parts))
    with (
        torch.no_grad(),
        resharded(model),
        modules_restored(model, training=False),
        random_state_restored(device),
        model.disable_adapter() if hasattr(model, "get_base_model") else nullcontext(),
    ):
        pooled = torch.cat(
            [_mean_states(model, [tokens[int(i)] for i in asked[part]], device) for part in parts]
        )
    places = asked[torch.cat(parts)][: len(mine)]
    return ranks.spread(pooled[: len(mine)], places, len(tokens))


def _mean_states(model: Any, rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    inputs = pad_prompts(rows, 0, device)
    mask = inputs["attention_mask"]
    # Logits of whole prompts would be the largest tensor: the head sees one state of each.
    first = torch.zeros_like(mask, dtype=torch.bool)
    first[:, 0] = True
    with states_picked(model, first) as seen:
        model(**inputs, use_cache=False)
    states = seen[0].float() * mask[..., None]
    return (states.sum(1) / mask.sum(1, keepdim=True)).cpu()
