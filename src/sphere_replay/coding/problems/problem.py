"""A programming problem as a record: prompt, reference, pytest file; JSON lines on disk."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from sphere_replay.errors import DataError
from sphere_replay.sandbox import JUDGES
from sphere_replay.storage.files import write_atomically

SPLIT_SIZES: dict[str, int] = {"train": 120, "evaluation": 100, "fit": 40, "probe": 40}
"""Problems per stage as in the paper; `fit` and `probe` are the two development splits."""


_TEXTS = ("id", "stage", "prompt", "reference", "tests", "split", "judge", "why_shared")
_OPTIONAL = {"judge": "strict", "why_shared": ""}
"""Fields that are written only where they say something else."""


@dataclass(frozen=True)
class Problem:
    """A problem; a program solves it if it passes every node of its tests."""

    id: str
    stage: str
    prompt: str
    reference: str
    """A program that passes."""
    tests: str
    """A pytest file, which imports the program as `solution`."""
    nodes: tuple[str, ...] = ()
    """The nodes that count, in pytest's order; none until they have been collected."""
    split: str = ""
    """A name of `SPLIT_SIZES`; empty until the problem is in one."""
    judge: str = "strict"
    """Who judges programs: `strict`, from a process of its own, or `shared`, in one interpreter."""
    why_shared: str = ""
    """Why the reference does not pass under the strict judge."""

    def __post_init__(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str):
                raise TypeError(f"a problem's {name} is a text, got {value!r}")
            if not value.strip() and name not in ("split", "tests", "why_shared"):
                raise ValueError(f"problem {self.id!r} has an empty {name}")
        if self.split and self.split not in SPLIT_SIZES:
            raise ValueError(
                f"problem {self.id!r} is in the split {self.split!r}; "
                f"there are {', '.join(SPLIT_SIZES)}"
            )
        if self.judge not in JUDGES:
            raise ValueError(
                f"problem {self.id!r} has the judge {self.judge!r}; there are {', '.join(JUDGES)}"
            )
        if not all(isinstance(node, str) for node in self.nodes):
            raise TypeError(f"the nodes of problem {self.id!r} are texts, got {self.nodes!r}")
        if len(set(self.nodes)) < len(self.nodes):
            raise ValueError(f"problem {self.id!r} names a node twice: {', '.join(self.nodes)}")

    @property
    def visible(self) -> str:
        """The one node that gives the reward: the first by SHA-256 of problem and node ids."""
        if not self.nodes:
            raise ValueError(f"problem {self.id!r} has no nodes: prepare it first")
        return min(
            self.nodes, key=lambda node: hashlib.sha256(f"{self.id}\n{node}".encode()).digest()
        )


def digest(problems: Iterable[Problem]) -> str:
    """SHA-256 of the file that these problems make; equal digests, equal problems."""
    return hashlib.sha256(_text(problems)).hexdigest()


def write_problems(path: Path, problems: Sequence[Problem]) -> None:
    """Write JSON lines, whole or not at all; equal problems give equal bytes."""
    taken, count = next(iter(Counter(p.id for p in problems).most_common(1)), ("", 0))
    if count > 1:
        raise ValueError(f"{count} problems have the id {taken!r}: ids must differ")
    write_atomically(path, _text(problems))


def read_problems(path: Path) -> tuple[Problem, ...]:
    """The problems of a file, or a DataError that names the line."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(
            f"{path} is not a file; make one with: sphere problems prepare micro --out {path}"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a UTF-8 text: {error}") from None
    problems: dict[str, Problem] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            problem = _problem(json.loads(line))
        except (TypeError, ValueError, RecursionError) as error:  # JSON's errors are ValueErrors
            raise DataError(f"{path}, line {number}: {error}") from None
        if problem.id in problems:
            raise DataError(f"{path}, line {number}: a second problem with the id {problem.id!r}")
        problems[problem.id] = problem
    if not problems:
        raise DataError(f"{path} holds no problem")
    return tuple(problems.values())


_FIELDS = tuple(field.name for field in fields(Problem))


def _problem(row: object) -> Problem:
    if not isinstance(row, dict) or not set(_FIELDS) - set(_OPTIONAL) <= set(row) <= set(_FIELDS):
        found = ", ".join(row) if isinstance(row, dict) else type(row).__name__
        needed = ", ".join(name for name in _FIELDS if name not in _OPTIONAL)
        raise ValueError(f"expected an object with {needed}; got {found}")
    if not isinstance(row["nodes"], list):
        raise TypeError(f"nodes is a list of texts, got {row['nodes']!r}")
    return Problem(**{**row, "nodes": tuple(row["nodes"])})


def _text(problems: Iterable[Problem]) -> bytes:
    lines = []
    for problem in problems:
        said = {name: v for name, v in asdict(problem).items() if _OPTIONAL.get(name) != v}
        lines.append(json.dumps(said, sort_keys=True) + "\n")
    return "".join(lines).encode()
