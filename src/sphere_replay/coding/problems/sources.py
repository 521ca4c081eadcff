"""Where candidates come from: KodCode-V1, MBPP, HumanEval, LeetCode, the generated micro-problems.

Each source reads rows with the hub's column names, from the hub or from `code/<name>.parquet` in a
folder of data, and turns them into problems with pytest files.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sphere_replay.errors import DataError, unknown
from sphere_replay.extras import require

from .micro import micro_family
from .prepare import Drop, Settings
from .problem import Problem
from .pytest_files import UNPARSABLE
from .rows import MAKERS, NoStageError

INCOMPLETE = "unusable row"
NO_STAGE = "no stage"


@dataclass(frozen=True)
class ProblemSource:
    """A collection of problems with rows of one schema."""

    schema: str
    """A name of `rows.MAKERS`."""
    hub: str | None = None
    hub_split: str = "train"
    fewest: int = 4
    """The least number of nodes; below the paper's 4 where hardly any problem has as many."""


SOURCES: dict[str, ProblemSource] = {
    "kodcode": ProblemSource("kodcode", "KodCode/KodCode-V1"),
    "kodcode-demo": ProblemSource("kodcode-any"),
    "mbpp": ProblemSource(
        "mbpp", "google-research-datasets/mbpp", "train+test+validation+prompt", fewest=3
    ),
    "humaneval": ProblemSource("humaneval", "openai/openai_humaneval", "test"),
    "leetcode": ProblemSource("leetcode", fewest=2),
}
"""Sources with files; `micro` needs none, and any other Parquet file has KodCode's columns."""


@dataclass(frozen=True)
class CandidateProblems:
    """What a source offers, and the rows that are no problem at all."""

    name: str
    problems: tuple[Problem, ...]
    dropped: tuple[Drop, ...]
    settings: Settings
    """The rules of preparation that suit this source."""


def source_names() -> list[str]:
    """The names that `load_candidates` knows."""
    return ["micro", *SOURCES]


def load_candidates(name: str, data: Path | None = None) -> CandidateProblems:
    """The candidates of a source by name, or of a Parquet file with KodCode's columns by path.

    Args:
        name: `micro`, a name of `SOURCES`, or a path that ends with `.parquet`.
        data: A folder with `code/<name>.parquet`; default `$SPHERE_DATA`, else the hub.
    """
    if name == "micro":
        # Micro-problems differ in a word or a number by design: only equal prompts are duplicates.
        # All are examined, so that the splits are those of `micro_problems`.
        family = micro_family()
        return CandidateProblems(name, family, (), Settings(similarity=None, enough=len(family)))
    if name.endswith(".parquet"):
        return _candidates(
            name, ProblemSource("kodcode-any"), _read_parquet(Path(name), "kodcode-any")
        )
    if name not in SOURCES:
        raise DataError(f"{unknown('source', name, source_names())}, or a Parquet file")
    source = SOURCES[name]
    rows: Iterable[Mapping[str, Any]]
    folder = data or os.environ.get("SPHERE_DATA")
    if folder:
        rows = _read_parquet(Path(folder) / "code" / f"{name}.parquet", source.schema, source)
    else:
        rows = _read_hub(name, source)
    return _candidates(name, source, rows)


def _candidates(
    name: str, source: ProblemSource, rows: Iterable[Mapping[str, Any]]
) -> CandidateProblems:
    make = MAKERS[source.schema].make
    problems, dropped = [], []
    for number, row in enumerate(rows):
        try:
            problems.append(make(row))
        except NoStageError as skipped:
            dropped.append(Drop(f"row {number}", skipped.stage, NO_STAGE, str(skipped)))
        except (*UNPARSABLE, KeyError, TypeError, AttributeError) as error:
            dropped.append(Drop(f"row {number}", "", INCOMPLETE, str(error)))
    settings = replace(Settings(), fewest=source.fewest)
    return CandidateProblems(name, tuple(problems), tuple(dropped), settings)


def _read_parquet(
    path: Path, schema: str, source: ProblemSource | None = None
) -> list[dict[str, Any]]:
    if not path.is_file():
        advice = ""
        if source is not None and source.hub is not None:
            advice = (
                f'; make it with datasets.load_dataset("{source.hub}", '
                f'split="{source.hub_split}").to_parquet("{path}"), or name no folder '
                "(no --data, no SPHERE_DATA) to download the dataset"
            )
        columns = ", ".join(MAKERS[schema].columns)
        raise DataError(f"{path} does not exist. It should hold the columns {columns}{advice}")
    parquet = require("pyarrow.parquet", "coding")
    try:
        names = parquet.read_schema(path).names
        _check_columns(str(path), schema, names)
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # Arrow's own errors derive from ValueError
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error
    return rows


def _read_hub(name: str, source: ProblemSource) -> Iterable[Mapping[str, Any]]:
    if source.hub is None:
        raise DataError(
            f"{name} is read from code/{name}.parquet in a folder: name it with --data or "
            "SPHERE_DATA; `micro` needs no data"
        )
    datasets = require("datasets", "coding")
    try:
        rows = datasets.load_dataset(source.hub, split=source.hub_split)
    except Exception as error:  # the hub's clients raise errors of many kinds
        raise DataError(
            f"{source.hub} could not be loaded from the hub ({type(error).__name__}: {error}); "
            f"put code/{name}.parquet into a folder and name it with --data or SPHERE_DATA"
        ) from error
    _check_columns(source.hub, source.schema, rows.column_names)
    found: Iterable[Mapping[str, Any]] = rows
    return found


def _check_columns(where: str, schema: str, names: Iterable[str]) -> None:
    present = set(names)
    if "test_code" in present:
        present.add("test")  # KodCode's releases differ in the name of this column
    if missing := [column for column in MAKERS[schema].columns if column not in present]:
        raise DataError(f"{where} lacks the columns {', '.join(missing)}")
