"""Exact match of greedy answers: what a model writes after `Answer:`, compared with the label.

Answers of one token need no writing: one forward tells the likeliest token, and the likeliest of
the task's labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sphere_replay.instruct.encoding import PromptEncoder, exact_match
from sphere_replay.instruct.stream import StreamTask
from sphere_replay.language import token_batches
from sphere_replay.language.forward import states_picked
from sphere_replay.language.greedy import write_greedily
from sphere_replay.language.rows import pad_prompts


@dataclass(frozen=True)
class Accuracy:
    """Of a task: shares of the judged examples."""

    exact: float
    """The greedy answer is the label."""
    likely: float | None = None
    """The label is the likeliest of the task's, whatever else the model would rather write."""


def measure_accuracy(
    model: Any, encoder: PromptEncoder, part: StreamTask, prompts: Sequence[Tensor], *, tokens: int
) -> Accuracy:
    """Accuracy on a task; by likelihood too where an answer is one token."""
    if encoder.answer_tokens != 1 or encoder.is_encoder_decoder:
        task, longest = part.task, encoder.longest_label([part.task])
        written = answers(model, encoder, prompts, longest, tokens=tokens)
        told = {label: encoder.text(torch.tensor(encoder.target(label))) for label in task.labels}
        pairs = zip(written, part.judged, strict=True)
        hits = sum(exact_match(answer, told[example.label]) for answer, example in pairs)
        return Accuracy(hits / len(written))
    scores = _next_tokens(model, prompts, encoder.tokenizer.pad_token_id, tokens)
    labels = [encoder.target(label)[0] for label in part.task.labels]
    right = torch.tensor([encoder.target(example.label)[0] for example in part.judged])
    likely = torch.tensor(labels)[scores[:, labels].argmax(1)]
    return Accuracy(
        exact=float((scores.argmax(1) == right).double().mean()),
        likely=float((likely == right).double().mean()),
    )


def answers(
    model: Any, encoder: PromptEncoder, prompts: Sequence[Tensor], length: int, *, tokens: int
) -> list[str]:
    """Greedy answers of at most `length` tokens to encoded prompts, in the order of the prompts.

    `tokens` of prompts, padding included, are read at a time; no label is longer than `length`.
    """
    batches = token_batches([len(prompt) for prompt in prompts], tokens)
    return write_greedily(model, encoder.tokenizer, prompts, length, batches, extra="instruct")


def _next_tokens(model: Any, prompts: Sequence[Tensor], pad: int, tokens: int) -> Tensor:
    """Scores of all tokens behind each prompt, `[n, vocabulary]`."""
    found: dict[int, Tensor] = {}
    training = model.training
    model.eval()
    with torch.inference_mode():
        for places in token_batches([len(prompt) for prompt in prompts], tokens):
            inputs = pad_prompts([prompts[place] for place in places.tolist()], pad)
            mask = inputs["attention_mask"]
            last = torch.arange(mask.shape[1]) == mask.sum(1, keepdim=True) - 1
            with states_picked(model, last):
                scores = model(**inputs, use_cache=False).logits
            found |= zip(places.tolist(), scores, strict=True)
    model.train(training)
    return torch.stack([found[place] for place in range(len(prompts))])
