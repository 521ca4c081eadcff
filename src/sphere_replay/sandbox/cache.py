"""Verdicts on disk, found by the content of what was run: JSON files, each written whole."""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from .limits import Limits, Verdict

_VERSION = 1
_LASTING = ("finished", "stopped", "uncollected", "empty", "tampered", "too large")
"""Endings that do not depend on how busy the machine was."""


class VerdictCache:
    """A folder of verdicts; safe for several processes at once."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def get(self, key: str) -> Verdict | None:
        """A stored verdict; None if there is none, or none that can be read."""
        try:
            fields = json.loads(self._path(key).read_text("utf-8"))
            return replace(Verdict(**fields), cached=True)
        except (OSError, ValueError, TypeError):
            return None

    def put(self, key: str, verdict: Verdict) -> None:
        """Store a verdict, unless another run could end differently."""
        if verdict.ending not in _LASTING:
            return
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        # Names of their own: two writers of one verdict must not meet in one file.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(verdict), file)
        os.replace(temporary, path)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key[2:]}.json"


def content_key(
    program: bytes, tests: str, nodes: Sequence[str] | None, limits: Limits, setting: str
) -> str:
    """A hash of all that decides a verdict; `setting` names isolation and versions."""
    content = {
        "version": _VERSION,
        "program": hashlib.sha256(program).hexdigest(),
        "tests": hashlib.sha256(tests.encode("utf-8", "surrogatepass")).hexdigest(),
        "nodes": None if nodes is None else sorted(nodes),
        "limits": asdict(limits),
        "setting": setting,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
