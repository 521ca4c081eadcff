"""Where candidates come from: KodCode-V1, MBPP, HumanEval, LeetCode, the generated micro-problems.

Each source reads rows with the hub's column names, from the hub or from `code/<name>.parquet` in a
folder of data, and turns them into problems with pytest files.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sphere_replay.errors import DataError, unknown
from sphere_replay.extras import require

from .examine import Settings
from .micro import micro_family
from .prepare import Drop
from .problem import Problem
from .pytest_files import UNPARSABLE
from .rows import (
    NoStageError,
    Row,
    humaneval_problem,
    kodcode_like_problem,
    kodcode_problem,
    leetcode_problem,
    mbpp_problem,
)

INCOMPLETE = "unusable row"
NO_STAGE = "no stage"


@dataclass(frozen=True)
class ProblemSource:
    """A collection of problems: how its rows become problems, and the columns that takes."""

    make: Callable[[Row], Problem]
    columns: tuple[str, ...]
    hub: str | None = None
    hub_split: str = "train"
    fewest: int = 4
    """The least number of nodes; below the paper's 4 where hardly any problem has as many."""


_KODCODE_COLUMNS = ("subset", "question_id", "question", "solution", "test")
_LIKE_KODCODE = ProblemSource(kodcode_like_problem, _KODCODE_COLUMNS)

SOURCES: dict[str, ProblemSource] = {
    "kodcode": ProblemSource(kodcode_problem, _KODCODE_COLUMNS, "KodCode/KodCode-V1"),
    "kodcode-demo": _LIKE_KODCODE,
    "mbpp": ProblemSource(
        mbpp_problem,
        ("task_id", "text", "code", "test_list", "challenge_test_list", "test_setup_code"),
        "google-research-datasets/mbpp",
        "train+test+validation+prompt",
        fewest=3,
    ),
    "humaneval": ProblemSource(
        humaneval_problem,
        ("task_id", "prompt", "canonical_solution", "test", "entry_point"),
        "openai/openai_humaneval",
        "test",
    ),
    "leetcode": ProblemSource(
        leetcode_problem,
        ("task_id", "prompt", "completion", "test", "entry_point", "meta"),
        fewest=2,
    ),
}
"""Sources with files; `micro` needs none, and any other Parquet file has KodCode's columns."""


@dataclass(frozen=True)
class CandidateProblems:
    """What a source offers, and the rows that are no problem at all."""

    problems: tuple[Problem, ...]
    dropped: tuple[Drop, ...]
    settings: Settings
    """The rules of preparation that suit this source."""


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
        return CandidateProblems(family, (), Settings(similarity=None, enough=len(family)))
    if name.endswith(".parquet"):
        return _candidates(_LIKE_KODCODE, _read_parquet(Path(name), _LIKE_KODCODE))
    if name not in SOURCES:
        raise DataError(f"{unknown('source', name, ['micro', *SOURCES])}, or a Parquet file")
    source = SOURCES[name]
    folder = data or os.environ.get("SPHERE_DATA")
    if folder:
        rows = _read_parquet(Path(folder) / "code" / f"{name}.parquet", source)
    else:
        rows = _read_hub(name, source)
    return _candidates(source, rows)


def _candidates(source: ProblemSource, rows: Iterable[Row]) -> CandidateProblems:
    problems, dropped = [], []
    for number, row in enumerate(rows):
        try:
            problems.append(source.make(row))
        except NoStageError as skipped:
            dropped.append(Drop(f"row {number}", skipped.stage, NO_STAGE, str(skipped)))
        except (*UNPARSABLE, KeyError, TypeError, AttributeError) as error:
            dropped.append(Drop(f"row {number}", "", INCOMPLETE, str(error)))
    settings = Settings(fewest=source.fewest)
    return CandidateProblems(tuple(problems), tuple(dropped), settings)


def _read_parquet(path: Path, source: ProblemSource) -> Iterable[Row]:
    if not path.is_file():
        advice = ""
        if source.hub is not None:
            advice = (
                f'; make it with datasets.load_dataset("{source.hub}", '
                f'split="{source.hub_split}").to_parquet("{path}"), or name no folder '
                "(no --data, no SPHERE_DATA) to download the dataset"
            )
        columns = ", ".join(source.columns)
        raise DataError(f"{path} does not exist. It should hold the columns {columns}{advice}")
    parquet = require("pyarrow.parquet", "coding")
    try:
        names = parquet.read_schema(path).names
        _check_columns(str(path), source, names)
        rows: Iterable[Row] = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # Arrow's own errors derive from ValueError
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error
    return rows


def _read_hub(name: str, source: ProblemSource) -> Iterable[Row]:
    if source.hub is None:
        raise DataError(
            f"{name} is read from code/{name}.parquet in a folder: name it with --data or "
            "SPHERE_DATA; `micro` needs no data"
        )
    datasets = require("datasets", "coding")
    try:
        found = datasets.load_dataset(source.hub, split=source.hub_split)
    except Exception as error:  # the hub's clients raise errors of many kinds
        raise DataError(
            f"{source.hub} could not be loaded from the hub ({type(error).__name__}: {error}); "
            f"put code/{name}.parquet into a folder and name it with --data or SPHERE_DATA"
        ) from error
    _check_columns(source.hub, source, found.column_names)
    rows: Iterable[Row] = found
    return rows


def _check_columns(where: str, source: ProblemSource, names: Iterable[str]) -> None:
    present = set(names)
    if "test_code" in present:
        present.add("test")  # KodCode's releases differ in the name of this column
    if missing := [column for column in source.columns if column not in present]:
        raise DataError(f"{where} lacks the columns {', '.join(missing)}")
