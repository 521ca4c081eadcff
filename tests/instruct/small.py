"""A small corpus and models of real architectures that fit it."""

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from sphere_replay.errors import Interrupted
from sphere_replay.extras import require
from sphere_replay.instruct.config import InstructConfig
from sphere_replay.instruct.generated import generated_corpus
from sphere_replay.instruct.presets import resolve
from sphere_replay.instruct.tasks import Corpus
from sphere_replay.instruct.tiny import TinySpec, build_t5, corpus_tokenizer
from sphere_replay.language.models import BaseModel
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.runs.job import LoopingJob

SPEC = TinySpec(width=16, feed_forward=32, heads=2, steps=2, batch=4)
BRIEF: dict[str, Any] = {
    "order": "topic,review,order",
    "cap": 40,
    "tests_per_task": 10,
    "capacity": 24,
    "pool": 12,
    "every": 3,
    "lora_dropout": 0.2,
    "warm_up": 2,
}


@cache
def corpus() -> Corpus:
    return generated_corpus(80, 20)


@cache
def tokenizer() -> Any:
    return corpus_tokenizer(corpus(), 600)


def t5() -> BaseModel:
    return BaseModel(build_t5(tokenizer(), SPEC), tokenizer())


def llama(positions: int = 128) -> BaseModel:
    transformers = require("transformers", "instruct")
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=positions,
        pad_token_id=tokenizer().pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer().eos_token_id,
    )
    with globally_seeded(generator_for(0, "initialization")):
        return BaseModel(transformers.LlamaForCausalLM(config), tokenizer())


def brief(select: str = "uniform", host: str = "er", **overrides: Any) -> InstructConfig:
    return resolve("instruct-tiny", host, select, **BRIEF | overrides)


def save(base: BaseModel, folder: Path) -> Path:
    base.model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    return folder


def train(job: LoopingJob, first: int = 0, end: int | None = None) -> list[Any]:
    """Take the steps of a job from one on, up to another; what each has for the log."""
    records: list[Any] = []

    def after(record: object, seconds: object = None) -> None:
        records.append(record)
        if first + len(records) == end:
            raise Interrupted("enough")

    with suppress(Interrupted):
        job.run(first, after)
    return records
