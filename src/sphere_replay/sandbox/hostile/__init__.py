"""Programs that try to get out, to get at the machine, or to pass without solving anything.

They are data: a file for each class of attempts. Each is bounded by itself as well (some children,
some MiB, a bait of ours as the victim), so that it does no harm even where containment fails. A
`probe` lists what it got hold of: nothing is a pass. A `program` must not pass its tests.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

CLASSES = (
    *("files", "processes", "memory", "kernel", "network"),  # the machine
    *("report", "comparison", "tests"),  # the verdict
)
CHEATS = CLASSES[5:]
"""Classes of programs that are after the verdict."""

_PROBE_TESTS = (
    "import solution\n\ndef test_nothing_was_reached():\n    assert solution.probe() == []\n"
)
_WRONG = "\ndef square(x):\n    return 0\n\ndef squares(xs):\n    return []\n"
_RIGHT = "\ndef square(x):\n    if x == 3:\n        return 9\n    raise TypeError\n"


@dataclass(frozen=True)
class Hostile:
    """A program and how it has to end."""

    name: str
    kind: str
    """One of `CLASSES`."""
    program: bytes
    tests: str
    endings: tuple[str, ...] = ()
    """Ways it may end; (): any."""
    limits: dict[str, float] = field(default_factory=dict)
    """Limits that it is meant to break, made small."""
    nodes: tuple[str, ...] | None = None
    probe: bool = False
    """Whether it passes if it reached nothing."""
    strict_only: bool = False
    """Whether only a judge out of its reach tells it from a good program."""


def battery(facts: Mapping[str, object]) -> list[Hostile]:
    """All hostile programs.

    Args:
        facts: `secret` (a file on the host that everyone may read), `folder` (one that everyone may
            write to), `pid` (a process of ours), `port` (a TCP and UDP port on which somebody
            listens), `socket` (a local socket's path), `abstract` (a local socket's name) and
            `shm` (the id of a segment of shared memory).
    """
    here = Path(__file__).parent
    tests = tomllib.loads((here / "suites.toml").read_text())
    facts = {**facts, "libc": (here / "libc.txt").read_text()}
    cases = []
    for kind in CLASSES:
        content = tomllib.loads((here / f"{kind}.toml").read_text())
        cases += [_probe(kind, entry, facts) for entry in content.get("probe", ())]
        cases += [_program(kind, entry, tests) for entry in content.get("program", ())]
    return cases


def _program(kind: str, entry: dict[str, Any], tests: Mapping[str, str]) -> Hostile:
    if "bytes" in entry:
        program = eval(entry["bytes"], {})
    else:
        program = entry["program"]
        solves = entry.get("solves", False)
        if solves or ("def square(" not in program and "def squares(" not in program):
            program += _RIGHT if solves else _WRONG
        program = program.encode()
    nodes = entry.get("nodes")
    return Hostile(
        entry["name"],
        kind,
        program,
        tests[entry.get("tests", "square")],
        tuple(entry.get("endings", ())),
        entry.get("limits", {}),
        None if nodes is None else tuple(nodes),
        strict_only=entry.get("strict_only", False),
    )


def _probe(kind: str, entry: dict[str, Any], facts: Mapping[str, object]) -> Hostile:
    """A probe that tries each of some statements and lists those that worked."""
    program = entry.get("program")
    if program is None:
        setup = Template(entry.get("setup", "")).substitute(facts)
        attempts = [Template(attempt).substitute(facts) for attempt in entry["attempts"]]
        program = (
            f"import os, resource, socket, subprocess, sys, time\n{setup}\n"
            f"ATTEMPTS = {attempts!r}\n\n"
            "def probe():\n"
            "    reached = []\n"
            "    for attempt in ATTEMPTS:\n"
            "        try:\n"
            "            exec(attempt, globals())\n"
            "            reached.append(attempt)\n"
            "        except Exception as error:\n"
            "            print(attempt, repr(error))\n"
            "    return reached\n"
        )
    return Hostile(entry["name"], kind, program.encode(), _PROBE_TESTS, probe=True)
