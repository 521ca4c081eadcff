"""From prompts and labels to token rows, and the checks that belong before any training.

An encoder-decoder model reads the prompt and writes the label. A decoder-only model reads prompt
and label as one row in which only the label's tokens (and the end of sequence) are targets. A
prompt that is too long loses words at the end of its sentence; instruction, options and `Answer:`
always stay.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sphere_replay.errors import DataError
from sphere_replay.instruct.tasks import Example, Task
from sphere_replay.language import longest_input
from sphere_replay.language.models import BaseModel
from sphere_replay.language.rows import IGNORED, Row

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    """Lower case, without punctuation, single spaces: the form in which answers are compared."""
    return re.sub(r"\s+", " ", answer.lower().translate(_PUNCTUATION)).strip()


def exact_match(answer: str, label: str) -> bool:
    """Whether an answer is the label, up to case, punctuation and white space."""
    return normalize(answer) == normalize(label)


@dataclass(frozen=True, eq=False)
class PromptEncoder:
    """Turns examples into rows for one model.

    Args:
        tokenizer: The model's own (a fast one, of transformers).
        is_encoder_decoder: Whether prompt and label go to different halves of the model.
        max_source: Most tokens of a prompt.
        limit: Most tokens that the model takes in one row; None if its positions are relative.
        answer_tokens: Leading tokens of a label that make an answer; None for all and the end.
    """

    tokenizer: Any
    is_encoder_decoder: bool
    max_source: int
    limit: int | None = None
    answer_tokens: int | None = None
    _targets: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, base: BaseModel, max_source: int, answer_tokens: int | None = None
    ) -> "PromptEncoder":
        """For a model, within its own limit."""
        limit = longest_input(base.model)
        return cls(base.tokenizer, base.is_encoder_decoder, max_source, limit, answer_tokens)

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse labels and prompts that could never work, whatever the examples."""
        for task in tasks:
            for label in task.labels:
                self._check_label(task, label)
            self._check_distinct(task)
            bare = len(self._ids([task.prompt("")])[0])
            if bare >= self.max_source:
                raise DataError(
                    f"instruction and options of {task.name} take {bare} tokens and leave no room "
                    f"for a sentence: raise max_source ({self.max_source})"
                )
        written = 0 if self.is_encoder_decoder else self.longest_label(tasks)
        if self.limit is not None and self.max_source + written > self.limit:
            raise DataError(
                f"prompts of {self.max_source} tokens and labels of {written} may make an example "
                f"longer than the model's {self.limit}: lower max_source to {self.limit - written}"
            )

    def longest_label(self, tasks: Sequence[Task]) -> int:
        """Tokens of the longest label, its end of sequence included."""
        return max(len(self.target(label)) for task in tasks for label in task.labels)

    def target(self, label: str) -> list[int]:
        """Token ids of a label and the end of sequence, or the first of them."""
        if label not in self._targets:
            # A decoder-only model continues `Answer:` with a space, as text does.
            text = label if self.is_encoder_decoder else f" {label}"
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            self._targets[label] = [*ids, self.tokenizer.eos_token_id][: self.answer_tokens]
        return self._targets[label]

    def prompts(self, task: Task, sentences: Sequence[str]) -> list[Tensor]:
        """Token ids `[n]` of each prompt, n at most `max_source`."""
        if not sentences:
            return []
        found = self._ids([task.prompt(sentence) for sentence in sentences])
        for place, sentence in enumerate(sentences):
            while len(found[place]) > self.max_source:
                sentence = self._shortened(sentence, len(found[place]) - self.max_source)
                found[place] = self._ids([task.prompt(sentence)])[0]
        return [torch.tensor(ids) for ids in found]

    def rows(self, task: Task, examples: Sequence[Example]) -> list[Row]:
        """Training examples."""
        prompts = self.prompts(task, [example.sentence for example in examples])
        pairs = zip(prompts, examples, strict=True)
        return [self.row(prompt, example.label) for prompt, example in pairs]

    def text(self, ids: Tensor) -> str:
        """What a model wrote, without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def row(self, prompt: Tensor, label: str) -> Row:
        """A training example from an encoded prompt."""
        target = torch.tensor(self.target(label))
        whole, labels = prompt, target
        if not self.is_encoder_decoder:
            # Nothing follows an answer of one token, so nobody reads what stands in its place.
            whole = torch.cat([prompt, target if self.answer_tokens is None else prompt[-1:]])
            labels = torch.cat([torch.full_like(prompt, IGNORED), target])
        return {"input_ids": whole, "attention_mask": torch.ones_like(whole), "labels": labels}

    def _ids(self, texts: list[str]) -> list[list[int]]:
        # Only an encoder is told where its input ends; a decoder goes on with the answer.
        # Not verbose: a prompt above the model's limit is about to be cut.
        encoded = self.tokenizer(texts, add_special_tokens=self.is_encoder_decoder, verbose=False)
        return [list(ids) for ids in encoded["input_ids"]]

    def _shortened(self, sentence: str, excess: int) -> str:
        """The sentence without its last `excess` tokens, and shorter in any case."""
        spans = self.tokenizer(
            sentence, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )["offset_mapping"]
        kept = spans[: max(0, len(spans) - excess)]
        end = int(kept[-1][1]) if kept else 0
        return sentence[: min(end, len(sentence) - 1)]

    def _check_label(self, task: Task, label: str) -> None:
        written = self.text(torch.tensor(self.target(label)))
        if not normalize(written):
            raise DataError(
                f"the label {label!r} of {task.name} tokenises to nothing, so no answer could be "
                "learned: use a label of letters or digits, or another tokenizer"
            )
        if self.answer_tokens is None and normalize(written) != normalize(label):
            raise DataError(
                f"the label {label!r} of {task.name} comes back from the tokenizer as "
                f"{written!r}: no answer could match it; use words that the tokenizer knows"
            )

    def _check_distinct(self, task: Task) -> None:
        answers: dict[tuple[int, ...], str] = {}
        for label in task.labels:
            other = answers.setdefault(tuple(self.target(label)), label)
            if other != label:
                raise DataError(
                    f"the labels {other!r} and {label!r} of {task.name} begin with the same token: "
                    "leave answer_tokens out, so that whole answers are learned"
                )
