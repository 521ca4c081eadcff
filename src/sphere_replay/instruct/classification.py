"""The 15 classification tasks of the instruction-tuning benchmark, from a folder of Parquet files.

The folder holds `instruct/tasks.json` (family, instruction and labels of each task) and
`instruct/<task>/train.parquet` and `test.parquet` with the columns `sentence` and `label`.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sphere_replay.errors import DataError
from sphere_replay.extras import require
from sphere_replay.instruct.tasks import NO_LABEL, Corpus, Example, Task

_COLUMNS = ["sentence", "label"]


def load_classification(names: Iterable[str], data: Path | None = None) -> Corpus:
    """The named tasks from `data`, or from `$SPHERE_DATA`."""
    folder = data or os.environ.get("SPHERE_DATA")
    if not folder:
        raise DataError(
            "corpus=classification reads instruct/tasks.json and instruct/<task>/*.parquet from a "
            "folder: name it with --data or SPHERE_DATA, or use corpus=generated, which needs none"
        )
    home = Path(folder) / "instruct"
    cards = _read_cards(home / "tasks.json")
    return Corpus("classification", {name: _read_task(name, cards, home) for name in names})


def _read_cards(path: Path) -> dict[str, Any]:
    try:
        cards = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist. It maps each task to its family, instruction and labels: "
            '{"sst2": {"family": "SC", "instruction": "...", "labels": ["Good", "Bad"]}, ...}'
        ) from None
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}") from None
    if not isinstance(cards, dict):
        raise DataError(f"{path} holds a {type(cards).__name__}, not an object of tasks")
    return cards


def _read_task(name: str, cards: dict[str, Any], home: Path) -> Task:
    if name not in cards:
        raise DataError(f"{home / 'tasks.json'} does not describe the task {name}")
    card = cards[name]
    missing = [key for key in ("family", "instruction", "labels") if key not in card]
    if missing:
        raise DataError(f"{home / 'tasks.json'} says nothing of {name}'s {', '.join(missing)}")
    return Task(
        name=name,
        family=card["family"],
        instruction=card["instruction"],
        labels=tuple(card["labels"]),
        train=_read_examples(home / name / "train.parquet"),
        test=_read_examples(home / name / "test.parquet"),
    )


def _read_examples(path: Path) -> tuple[Example, ...]:
    parquet = require("pyarrow.parquet", "instruct")
    if not path.is_file():
        raise DataError(
            f"{path} does not exist. It should hold the columns sentence and label; write it from "
            "the O-LoRA benchmark's JSON (CL_Benchmark) or from any rows with "
            f'datasets.Dataset.from_dict({{"sentence": [...], "label": [...]}})'
            f'.to_parquet("{path}")'
        )
    try:
        found = parquet.read_schema(path).names
        if not set(_COLUMNS) <= set(found):
            raise DataError(f"{path} has the columns {', '.join(found)}; it needs sentence, label")
        rows = parquet.read_table(path, columns=_COLUMNS).to_pylist()
    except (OSError, ValueError) as error:  # Arrow's own errors derive from ValueError
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error
    return tuple(Example(**row) for row in rows if row["label"] != NO_LABEL)
