"""Exact match of greedy answers: what a model writes after `Answer:`, compared with the label."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sphere_replay.extras import require
from sphere_replay.instruct.encoding import Encoder
from sphere_replay.instruct.stream import StreamTask
from sphere_replay.instruct.words import exact_match
from sphere_replay.language import token_batches


def accuracy(
    model: Any, encoder: Encoder, part: StreamTask, prompts: Sequence[Tensor], *, tokens: int
) -> float:
    """Share of the task's judged examples that are answered with their label."""
    written = answers(model, encoder, prompts, encoder.longest_label([part.task]), tokens=tokens)
    pairs = zip(written, part.judged, strict=True)
    return sum(exact_match(answer, example.label) for answer, example in pairs) / len(written)


def answers(
    model: Any, encoder: Encoder, prompts: Sequence[Tensor], length: int, *, tokens: int
) -> list[str]:
    """Greedy answers of at most `length` tokens to encoded prompts, in the order of the prompts.

    Args:
        model: A transformers model, bare or wrapped by PEFT; its mode is put back.
        encoder: Made the prompts.
        prompts: Token ids `[n]` each.
        length: Where an answer is cut off: no label is longer.
        tokens: Padded tokens read at a time.
    """
    settings = require("transformers", "instruct").GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=length,
        pad_token_id=encoder.tokenizer.pad_token_id,
        eos_token_id=encoder.tokenizer.eos_token_id,
        decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
    )
    written = [""] * len(prompts)
    training = model.training
    model.eval()
    with torch.inference_mode():
        for places in token_batches([len(prompt) for prompt in prompts], tokens):
            chosen = [prompts[place] for place in places.tolist()]
            ids, mask = _padded(chosen, encoder.tokenizer.pad_token_id)
            found = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
            if not encoder.is_encoder_decoder:
                found = found[:, ids.shape[1] :]
            for place, row in zip(places.tolist(), found, strict=True):
                written[place] = encoder.text(row)
    model.train(training)
    return written


def _padded(prompts: Sequence[Tensor], pad: int) -> tuple[Tensor, Tensor]:
    """Ids and mask `[n, t]`, padded on the left: a decoder goes on from the last column."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), pad)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return ids, mask
