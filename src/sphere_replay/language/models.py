"""Pretrained models with their tokenizers, from a folder or the hub, and what trains in them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sphere_replay.errors import DataError
from sphere_replay.extras import require
from sphere_replay.randomness import globally_seeded


@dataclass(frozen=True, eq=False)
class BaseModel:
    """A pretrained model that no adapter has touched yet."""

    model: Any
    """A transformers model; its classes are chosen at run time."""
    tokenizer: Any

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether prompt and label go to different halves."""
        return bool(self.model.config.is_encoder_decoder)


def load_pretrained(source: str, name: str, made_here: str, extra: str = "instruct") -> BaseModel:
    """A model in float32 with its tokenizer, which pads with its end if it has no padding.

    Args:
        source: A folder written by `save_pretrained`, or an id on the hub.
        name: What the user called it, for messages.
        made_here: Names of the models that need no download, for messages.
        extra: Of the package, that brings transformers.
    """
    transformers = require("transformers", extra)
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        family = "Seq2SeqLM" if config.is_encoder_decoder else "CausalLM"
        kind = getattr(transformers, f"AutoModelFor{family}")
        model = kind.from_pretrained(source, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise DataError(
            f"could not load the model {name!r}: {error}\nName {made_here}, a folder written by "
            "save_pretrained, or an id on the Hugging Face hub that this machine can reach"
        ) from error
    if tokenizer.eos_token_id is None:
        raise DataError(f"the tokenizer of {name!r} has no end-of-sequence token; answers need one")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return BaseModel(model, tokenizer)


def with_adapters(
    base: BaseModel,
    generator: torch.Generator,
    *,
    rank: int,
    alpha: int,
    targets: Callable[[nn.Module], str | list[str]],
    dropout: float = 0.0,
) -> Any:
    """The model with LoRA on the projections that `targets` names; with rank 0, as it is."""
    if rank == 0:
        return base.model
    peft = require("peft", "instruct")
    config = peft.LoraConfig(
        task_type="SEQ_2_SEQ_LM" if base.is_encoder_decoder else "CAUSAL_LM",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets(base.model),
    )
    with globally_seeded(generator):
        return peft.get_peft_model(base.model, config)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that train, by name."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}
