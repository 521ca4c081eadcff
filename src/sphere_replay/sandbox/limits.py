"""What a program may use, and how its run is described afterwards."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
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


def _limit(default: float, least: float, meaning: str) -> Any:
    """A limit; below `least` not even pytest itself gets through."""
    return field(default=default, metadata={"least": least, "help": meaning})


@dataclass(frozen=True)
class Limits:
    """Limits of one run; sizes are in bytes."""

    wall: float = _limit(10.0, 0.01, "seconds until the run is cut off")
    cpu: float = _limit(10.0, 0.01, "seconds of processor time per process")
    memory: int = _limit(512 * MEBIBYTE, 16 * MEBIBYTE, "memory of all processes together")
    processes: int = _limit(64, 1, "processes and threads")
    files: int = _limit(256, 16, "open files")
    file_size: int = _limit(16 * MEBIBYTE, 4096, "size of one file")
    scratch: int = _limit(64 * MEBIBYTE, 64 * 1024, "size of all files together")
    output: int = _limit(MEBIBYTE, 0, "printed bytes")

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            least = spec.metadata["least"]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{spec.name} takes a number, got {value!r}")
            if not math.isfinite(value) or value < least:
                raise ValueError(f"{spec.name} = {value} is no limit: give at least {least}")
            if spec.type is int and not isinstance(value, int):
                raise TypeError(f"{spec.name} takes a whole number, got {value!r}")


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
