"""Exact match of greedy answers: what a model writes after `Answer:`, compared with the label."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sphere_replay.instruct.encoding import PromptEncoder
from sphere_replay.instruct.stream import StreamTask
from sphere_replay.instruct.words import exact_match
from sphere_replay.language import token_batches
from sphere_replay.language.greedy import write_greedily


def accuracy(
    model: Any, encoder: PromptEncoder, part: StreamTask, prompts: Sequence[Tensor], *, tokens: int
) -> float:
    """Share of the task's judged examples that are answered with their label."""
    written = answers(model, encoder, prompts, encoder.longest_label([part.task]), tokens=tokens)
    pairs = zip(written, part.judged, strict=True)
    return sum(exact_match(answer, example.label) for answer, example in pairs) / len(written)


def answers(
    model: Any, encoder: PromptEncoder, prompts: Sequence[Tensor], length: int, *, tokens: int
) -> list[str]:
    """Greedy answers of at most `length` tokens to encoded prompts, in the order of the prompts.

    `tokens` of prompts, padding included, are read at a time; no label is longer than `length`.
    """
    batches = token_batches([len(prompt) for prompt in prompts], tokens)
    return write_greedily(model, encoder.tokenizer, prompts, length, batches, extra="instruct")
