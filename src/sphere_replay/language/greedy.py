"""What a model writes when it does not sample."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sphere_replay.extras import require
from sphere_replay.language.forward import is_encoder_decoder
from sphere_replay.language.rows import pad_prompts


def write_greedily(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int] | Tensor],
    length: int,
    batches: Iterable[Tensor],
    *,
    extra: str,
) -> list[str]:
    """Greedy continuations of at most `length` tokens, in the order of the prompts.

    Args:
        model: A transformers model, bare or wrapped by PEFT; its mode is put back.
        tokenizer: With a token for padding; special tokens are left out of the texts.
        prompts: Token ids `[t]` each.
        length: Where a text is cut off.
        batches: Which prompts are read together, as `token_batches` gives them.
        extra: What to install where transformers is missing.
    """
    settings = require("transformers", extra).GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
    )
    written = [""] * len(prompts)
    training = model.training
    model.eval()
    with torch.inference_mode():
        for places in batches:
            chosen = [prompts[place] for place in places.tolist()]
            inputs = pad_prompts(chosen, tokenizer.pad_token_id, model.device, left=True)
            found = model.generate(**inputs, generation_config=settings)
            if not is_encoder_decoder(model):
                found = found[:, inputs["input_ids"].shape[1] :]
            texts = tokenizer.batch_decode(found, skip_special_tokens=True)
            for place, text in zip(places.tolist(), texts, strict=True):
                written[place] = text
    model.train(training)
    return written
