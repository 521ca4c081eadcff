"""Files that are either the old version or the new one, never something in between."""

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from sphere_replay.errors import DataError
from sphere_replay.extras import require


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file; a crash at any moment leaves the old content or the new, whole.

    Several processes may write the same file at once: one of them comes last.
    """
    with room_for(path), replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A free name beside `path`: the file or folder made there takes its place if all goes well."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        yield temporary
        _flush(temporary)
        replace_durably(temporary, path)
    finally:  # only there if something went wrong
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def stage(path: Path, content: bytes) -> Path:
    """Write the content beside `path`, onto the disk, for a later `replace_durably`.

    One writer at a time: what a crash leaves behind is overwritten by the next attempt.
    """
    temporary = path.with_name(path.name + ".tmp")
    with room_for(path):
        temporary.write_bytes(content)
        _flush(temporary)
    return temporary


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """A disk without room is told by its folder, and by the file there was no room for."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"no room for {path.name} in {path.parent.resolve()} ({error.strerror}): "
            "free some, and start again; what was there before is intact",
        ) from error


def replace_durably(source: Path, target: Path) -> None:
    """Rename within a directory, then make the directory itself durable."""
    os.replace(source, target)
    _flush(target.parent)


def _flush(path: Path) -> None:
    """Wait until the disk has what was written to a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def entry_name(name: str, origin: object) -> str:
    """Name of a cached entry: readable, then a digest of everything the content depends on."""
    digest = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()
    return f"{name}-{digest[:16]}"


def cached_folder(
    home: Path, name: str, origin: Mapping[str, object], build: Callable[[Path], None]
) -> Path:
    """The folder of an entry, built unless it is there already.

    Two processes that start at once build it once: the second waits for the first. A crash leaves
    no half-built entry, because a folder takes its name when it is complete.

    Args:
        home: Where entries live.
        name: Readable first part of the entry's name.
        origin: Everything the content depends on; its digest is the rest of the name.
        build: Fills the empty folder it is given.
    """
    target = home / entry_name(name, origin)
    home.mkdir(parents=True, exist_ok=True)
    # The system drops the lock with the process, however it ends; a soft lock would stay behind.
    lock = home / f"{target.name}.lock"
    with require("filelock", "instruct").FileLock(lock, fallback_to_soft=False):
        if not target.is_dir():
            with replacing(target) as temporary:
                temporary.mkdir()
                build(temporary)
    return target


def plain(value: object, where: str, *, spell_non_finite: bool = False) -> Any:
    """The value as JSON knows it: dictionaries with text keys, lists, text, numbers, null.

    Tuples become lists. Anything else is an error that says where it stands, and so are infinities
    and NaN, which JSON has no notation for, unless they are to be spelled out as text.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        if spell_non_finite:
            return str(value)
        raise ValueError(f"{where} = {value} cannot be stored: only finite numbers can")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; keys must be text, use str(key)")
        return {
            str(key): plain(item, f"{where}.{key}", spell_non_finite=spell_non_finite)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            plain(item, f"{where}[{index}]", spell_non_finite=spell_non_finite)
            for index, item in enumerate(value)
        ]
    raise TypeError(
        f"{where} is a {type(value).__name__}, which JSON cannot hold; convert it to numbers, "
        "text, lists or dictionaries first (.item(), .tolist(), str(...))"
    )


def leaves(tree: Mapping[str, Any], separator: str = "/") -> Iterator[tuple[str, Any]]:
    """Nested values with their paths; nothing is nested in an empty dictionary."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            nested = leaves(value, separator)
            yield from ((f"{name}{separator}{path}", leaf) for path, leaf in nested)
        else:
            yield str(name), value


def canonical_json(value: Mapping[str, object], name: str) -> str:
    """The one text of a dictionary: sorted keys, a line for each of the outermost.

    Equal dictionaries give equal bytes, so files can be hashed and compared byte for byte. `name`
    says in errors what is being written.
    """
    fields = plain(value, name)
    lines = [
        f"  {json.dumps(key)}: {json.dumps(fields[key], sort_keys=True, allow_nan=False)}"
        for key in sorted(fields)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_json(path: Path) -> dict[str, Any]:
    """The dictionary in a file, or an error that names the file and says what to do."""
    remedy = "restore it from a copy, or make it again"
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} does not exist: is {path.parent} the folder of a run?"
        ) from None
    except RecursionError:
        raise DataError(f"{path} is damaged: it is nested too deeply; {remedy}") from None
    except ValueError as error:  # neither JSON nor UTF-8
        raise DataError(f"{path} is damaged: {error}; {remedy}") from None
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise DataError(f"{path} is damaged: it holds a {kind}, not an object; {remedy}")
    return content
