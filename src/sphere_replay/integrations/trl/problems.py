"""The problems of a training set: rows that share a name are one problem."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sphere_replay.errors import DataError

PROMPT = "prompt"
_IMAGES = ("image", "images")


@dataclass(frozen=True)
class Problems:
    """Distinct problems, numbered in order of first appearance."""

    names: tuple[str | int, ...]
    rows: tuple[int, ...]
    """The first row of each."""
    numbers: Mapping[str | int, int]
    """From name to number."""

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(cls, dataset: Any, id_field: str) -> "Problems":
        """Read names and prompts once; an error unless every name stands for one prompt."""
        columns: list[str] = getattr(dataset, "column_names", None) or []
        if not hasattr(dataset, "__len__"):
            raise DataError(
                "replay needs a training set whose rows can be read at any time: pass a "
                "datasets.Dataset, not an iterable one"
            )
        if len(dataset) == 0:
            raise DataError("the training set is empty: nothing can be sampled or replayed")
        for name, what in ((id_field, "names each row's problem"), (PROMPT, "holds the prompt")):
            if name not in columns:
                hint = "; or pass id_field=..." if name == id_field else ""
                raise DataError(
                    f"the training set has no column {name!r}, which {what}; it has "
                    f"{', '.join(columns)}: add it{hint}"
                )
        pictures = [name for name in _IMAGES if name in columns]
        if pictures:
            raise DataError(
                f"the training set has a column {pictures[0]!r}: replay samples text-only problems"
            )
        return cls._numbered(list(dataset[id_field]), list(dataset[PROMPT]))

    @classmethod
    def _numbered(cls, names: Sequence[Any], prompts: Sequence[Any]) -> "Problems":
        first: dict[str | int, int] = {}
        for row, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
            if isinstance(name, bool) or not isinstance(name, str | int):
                raise DataError(
                    f"row {row} of the training set names its problem {name!r}: use text or whole "
                    "numbers"
                )
            known = first.setdefault(name, row)
            if prompts[known] != prompt:
                raise DataError(
                    f"rows {known} and {row} of the training set have different prompts under one "
                    f"name, {name!r}: give each problem a name of its own"
                )
        numbers = {name: number for number, name in enumerate(first)}
        return cls(tuple(first), tuple(first.values()), numbers)

    @property
    def digest(self) -> str:
        """SHA-256 of the names in order: saved replay belongs to these problems."""
        return hashlib.sha256(json.dumps(self.names).encode()).hexdigest()
