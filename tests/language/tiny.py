"""Tiny models of real architectures, and rows to feed them."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from sphere_replay.language import (
    LanguageReplay,
    LanguageReplaySettings,
    Row,
    TokenExamples,
    TokenMemory,
)
from sphere_replay.randomness import generator_for, globally_seeded

VOCABULARY = 64
PAD = 0
_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


def t5(seed: int = 0, dropout: float = 0.0) -> T5ForConditionalGeneration:
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=2,
        dropout_rate=dropout,
        pad_token_id=PAD,
        eos_token_id=1,
    )
    config.decoder_start_token_id = PAD
    with globally_seeded(generator_for(seed, "initialization")):
        return T5ForConditionalGeneration(config)


def qwen2(seed: int = 0, dropout: float = 0.0, positions: int = 64) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        **_DECODER,
        num_key_value_heads=1,
        max_position_embeddings=positions,
        attention_dropout=dropout,
    )
    with globally_seeded(generator_for(seed, "initialization")):
        return Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call, unused-ignore]  # typed since transformers 5.23


def llama(seed: int = 0) -> LlamaForCausalLM:
    with globally_seeded(generator_for(seed, "initialization")):
        return LlamaForCausalLM(LlamaConfig(**_DECODER))  # type: ignore[no-untyped-call, unused-ignore]  # typed since transformers 5.23


def with_lora(model: Any) -> Any:
    """The paper's adapter, smaller: on queries and values; not zero at first."""
    both = model.config.is_encoder_decoder
    config = LoraConfig(
        r=2,
        target_modules=["q", "v"] if both else ["q_proj", "v_proj"],
        task_type="SEQ_2_SEQ_LM" if both else "CAUSAL_LM",
        init_lora_weights=False,
    )
    with globally_seeded(generator_for(0, "adapter")):
        return get_peft_model(model, config)


def rows(count: int, *, encoder_decoder: bool, seed: int = 0, longest: int = 20) -> list[Row]:
    """Random rows of different lengths; a decoder-only one predicts its last few tokens."""
    generator = generator_for(seed, "rows")

    def tokens(low: int, high: int) -> torch.Tensor:
        size = int(torch.randint(low, high + 1, (), generator=generator))
        return torch.randint(2, VOCABULARY, (size,), generator=generator)

    made = []
    for _ in range(count):
        source, target = tokens(4, longest - 4), tokens(1, 4)
        if encoder_decoder:
            ids, labels = source, target
        else:
            ids = torch.cat([source, target])
            labels = torch.cat([torch.full_like(source, -100), target])
        made.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return made


def language_replay(
    *, encoder_decoder: bool = False, capacity: int = 32, seed: int = 0, **options: Any
) -> LanguageReplay:
    memory = TokenMemory(capacity, generator=generator_for(seed, "admission"))
    ranks = options.pop("ranks", None)
    settings = LanguageReplaySettings(
        **{"every": 2, "pool": 16, "capacity": capacity, "replay_batch": 1, **options}
    )
    settings.check_replay()
    return LanguageReplay(
        memory,
        settings,
        generator=generator_for(seed, "replay"),
        examples=TokenExamples(PAD, encoder_decoder),
        ranks=ranks,
    )
