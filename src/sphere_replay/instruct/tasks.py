"""Tasks, their prompts and orders: what every corpus is made of, and nothing that reads a file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from sphere_replay.errors import DataError

NO_LABEL = "-"
"""What MNLI writes where the annotators did not agree: no answer can match, so it is left out."""

ANSWER = "\nAnswer:"
"""What every prompt ends with."""


@dataclass(frozen=True)
class Example:
    """A sentence and its verbalised label."""

    sentence: str
    label: str


@dataclass(frozen=True)
class Task:
    """A classification task told as an instruction; labels are words that the model writes."""

    name: str
    family: str
    instruction: str
    """One sentence; empty where the examples bring their own question (COPA)."""
    labels: tuple[str, ...]
    train: tuple[Example, ...]
    test: tuple[Example, ...]

    def __post_init__(self) -> None:
        for split, examples in (("training", self.train), ("test", self.test)):
            if not examples:
                raise DataError(f"task {self.name} has no {split} examples")
            for place, example in enumerate(examples):
                if example.label not in self.labels:
                    raise DataError(
                        f"{split} example {place} of {self.name} has the label {example.label!r}; "
                        f"the task's labels are {', '.join(self.labels)}"
                    )

    def prompt(self, sentence: str) -> str:
        r"""What the model reads: task, dataset, instruction, options, the sentence, `Answer:`."""
        return f"{self.head}{sentence}{ANSWER}"

    @cached_property
    def head(self) -> str:
        """All that stands before the sentence."""
        head = f"Task:{self.family}\nDataset:{self.name}\n"
        if not self.instruction:
            return head
        return f"{head}{self.instruction}\nOption: {', '.join(self.labels)} \n"


@dataclass(frozen=True, eq=False)
class Corpus:
    """The tasks of a corpus by name."""

    name: str
    tasks: Mapping[str, Task]

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of all texts: two runs with equal checksums read the same corpus."""
        tasks = [asdict(task) for _, task in sorted(self.tasks.items())]
        return hashlib.sha256(json.dumps(tasks).encode()).hexdigest()


ORDERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "classification": (
        (
            "mnli", "cb", "wic", "copa", "qqp", "boolq", "rte", "imdb", "yelp", "amazon", "sst2",
            "dbpedia", "agnews", "multirc", "yahoo",
        ),
        (
            "multirc", "boolq", "wic", "mnli", "cb", "copa", "qqp", "rte", "imdb", "sst2",
            "dbpedia", "agnews", "yelp", "amazon", "yahoo",
        ),
        (
            "yelp", "amazon", "mnli", "cb", "copa", "qqp", "rte", "imdb", "sst2", "dbpedia",
            "agnews", "yahoo", "multirc", "boolq", "wic",
        ),
    ),
    "generated": (
        ("topic", "review", "parity", "kind", "stars", "alive", "place", "order"),
        ("order", "place", "alive", "stars", "kind", "parity", "review", "topic"),
        ("stars", "kind", "order", "topic", "parity", "place", "review", "alive"),
    ),
}  # fmt: skip
"""Orders by corpus; those of `classification` are the paper's 0, 1 and 2."""
