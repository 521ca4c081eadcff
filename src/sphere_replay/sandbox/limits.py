"""What a program may use, and how its run is described afterwards."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

MEBIBYTE = 1 << 20
JUDGES = ("strict", "shared")
"""Where tests run: in a process that the program cannot reach, or in the program's own."""


def printable(text: str) -> str:
    """A text that cannot move the cursor, ring, or turn the line around: escaped where it could."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


@dataclass(frozen=True)
class Limits:
    """Limits of one run; sizes are in bytes."""

    wall: float = field(default=10.0, metadata={"help": "seconds until the run is cut off"})
    cpu: float = field(default=10.0, metadata={"help": "seconds of processor time per process"})
    memory: int = field(
        default=512 * MEBIBYTE, metadata={"help": "memory of all processes together"}
    )
    processes: int = field(default=64, metadata={"help": "processes and threads"})
    files: int = field(default=256, metadata={"help": "open files"})
    file_size: int = field(default=16 * MEBIBYTE, metadata={"help": "size of one file"})
    scratch: int = field(default=64 * MEBIBYTE, metadata={"help": "size of all files together"})
    output: int = field(default=MEBIBYTE, metadata={"help": "printed bytes"})

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            least = _LEAST[spec.name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{spec.name} takes a number, got {value!r}")
            if not math.isfinite(value) or value < least:
                raise ValueError(f"{spec.name} = {value} is no limit: give at least {least}")
            if spec.type is int and not isinstance(value, int):
                raise TypeError(f"{spec.name} takes a whole number, got {value!r}")

    def to_dict(self) -> dict[str, float]:
        """Every limit by name."""
        return asdict(self)


# Below these not even pytest itself gets through.
_LEAST: dict[str, float] = {
    "wall": 0.01,
    "cpu": 0.01,
    "memory": 16 * MEBIBYTE,
    "processes": 1,
    "files": 16,
    "file_size": 4096,
    "scratch": 64 * 1024,
    "output": 0,
}


@dataclass(frozen=True)
class Verdict:
    """What became of one program."""

    nodes: dict[str, str]
    """Node -> `passed`, `failed`, `error`, `skipped` or `timeout`; `TestClass::test_name`,
    `test_name[parameter]`."""
    ending: str
    """How the run ended: `finished`; `stopped` (before all tests had been reported); `timeout`,
    `memory`, `scratch`, `output` (the limit that cut it off); `uncollected` (the test file, or the
    program that it imports, cannot be loaded); `empty` (no node); `tampered` (reports that pytest
    did not make); `too large`; `broken` (the sandbox itself failed)."""
    why: str = ""
    """A sentence on an ending other than `finished`."""
    messages: dict[str, str] = field(default_factory=dict)
    """What went wrong, for nodes that did not pass and said so."""
    output: str = ""
    """The last of what the program printed."""
    seconds: float = 0.0
    cached: bool = False

    @property
    def passed(self) -> bool:
        """Whether there were nodes, every one passed, and no limit was broken on the way."""
        outcomes = self.nodes.values()
        return self.ending == "finished" and bool(outcomes) and set(outcomes) == {"passed"}

    def to_json(self) -> dict[str, Any]:
        """Every field."""
        return asdict(self)


def verdict_from(answer: Mapping[str, Any], known: list[str]) -> Verdict:
    """The verdict that a worker's answer amounts to.

    Args:
        answer: What the server said.
        known: Nodes to name if the program kept pytest from collecting any.
    """
    ending, why = _ending(answer)
    collected: list[str] | None = answer["collected"]
    nodes = known if collected is None or ending in ("uncollected", "broken") else collected
    unfinished = "timeout" if ending == "timeout" else "error"
    worthless = ending in ("tampered", "broken", "uncollected")
    reported: dict[str, str] = {} if worthless else answer["outcomes"]
    return Verdict(
        {node: reported.get(node, unfinished) for node in nodes},
        ending,
        why,
        {node: text for node, text in answer["messages"].items() if text and node in reported},
        answer["output"],
        answer["seconds"],
    )


def _ending(answer: Mapping[str, Any]) -> tuple[str, str]:
    if answer["refused"] is not None:
        return "broken", f"the program was not started: {answer['refused']}"
    if answer["fraud"] is not None:
        return "tampered", f"the reports cannot be trusted: {answer['fraud']}"
    if answer["uncollected"] is not None:
        return "uncollected", answer["uncollected"]
    if answer["ending"] != "finished":
        return answer["ending"], f"the run broke its limit of {_LIMIT_OF[answer['ending']]}"
    if answer["collected"] is None:
        return "uncollected", "the program ended the run before any test"
    if not answer["collected"]:
        return "empty", "the test file has no node that pytest can collect"
    if set(answer["collected"]) - set(answer["outcomes"]):
        return "stopped", "the program ended the run before all tests had been reported"
    return "finished", ""


_LIMIT_OF = {
    "timeout": "wall-clock time",
    "memory": "memory",
    "scratch": "files on disk",
    "output": "printed bytes",
}
