"""Greedy programs: what a policy writes when it does not sample, and how much of it is right."""

from collections.abc import Sequence
from typing import Any

import torch

from sphere_replay.coding.judge import Judge
from sphere_replay.coding.models import prompt_ids
from sphere_replay.coding.problems import Problem
from sphere_replay.coding.programs import extract_program
from sphere_replay.extras import require
from sphere_replay.language import token_batches


def accuracy(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    judge: Judge,
    *,
    length: int,
    tokens: int = 8192,
) -> float:
    """Share of the problems whose greedy program passes the full suite."""
    programs = greedy_programs(model, tokenizer, problems, length=length, tokens=tokens)
    solved = judge.solved(list(zip(problems, programs, strict=True)))
    return sum(solved) / len(solved)


def greedy_programs(
    model: Any, tokenizer: Any, problems: Sequence[Problem], *, length: int, tokens: int = 8192
) -> list[str]:
    """Greedy programs of at most `length` tokens, in the order of the problems.

    Args:
        model: A causal model of transformers, bare or wrapped by PEFT; its mode is put back.
        tokenizer: Pads on the left.
        problems: What to solve.
        length: Where a program is cut off.
        tokens: Padded tokens, programs included, that are held at a time.
    """
    settings = require("transformers", "coding").GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    encoded = prompt_ids(problems, tokenizer)
    written = [""] * len(problems)
    training = model.training
    model.eval()
    with torch.inference_mode():
        for places in token_batches([len(ids) + length for ids in encoded], tokens):
            rows = {"input_ids": [encoded[place] for place in places.tolist()]}
            batch = tokenizer.pad(rows, padding_side="left", return_tensors="pt").to(model.device)
            found = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                generation_config=settings,
            )
            texts = tokenizer.batch_decode(
                found[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
            )
            for place, text in zip(places.tolist(), texts, strict=True):
                written[place] = extract_program(text)
    model.train(training)
    return written
