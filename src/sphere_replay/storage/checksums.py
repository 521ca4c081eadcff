"""Whether what is read is what was written: checksums of a folder's files, and of entries.

They stand against accidents and second thoughts, not against somebody who makes new ones.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sphere_replay.errors import DataError
from sphere_replay.storage.files import canonical_json, read_json, write_atomically

NAME = "checksums.json"
SEAL = "sha256"
"""Under which an entry carries its own."""


class EditedError(DataError):
    """A file is not what was written."""


def write_checksums(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Vouch for files of a folder that have, or are about to have, these contents."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    write_atomically(folder / NAME, canonical_json(sums, NAME).encode())


def edited_files(folder: Path) -> list[str]:
    """Names of files that do not fit their checksums; none where nobody has written any."""
    if not (folder / NAME).is_file():
        return []
    return [
        name
        for name, expected in read_json(folder / NAME).items()
        if _digest_of(folder / name) != expected
    ]


def sealed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with its checksum."""
    return {**entry, SEAL: _digest(entry)}


def seal_broken(entry: Mapping[str, Any]) -> bool | None:
    """Whether an entry differs from what was sealed; None if it never was."""
    return None if SEAL not in entry else entry[SEAL] != _digest(entry)


def _digest(entry: Mapping[str, Any]) -> str:
    content = {name: value for name, value in entry.items() if name != SEAL}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _digest_of(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
