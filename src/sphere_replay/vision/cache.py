"""Decoded tensors kept between runs, as safetensors: decoding 60,000 images happens once."""

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from sphere_replay.extras import require

_FORMAT = 1
"""Part of every key; raise it when decoding changes, and old entries are no longer found."""


def cache_folder(folder: str | Path | None = None) -> Path:
    """The given folder, else `$SPHERE_CACHE`, else `~/.cache/sphere-replay`."""
    chosen = folder or os.environ.get("SPHERE_CACHE") or "~/.cache/sphere-replay"
    return Path(chosen).expanduser()


def cached_tensors(
    folder: Path,
    name: str,
    origin: Sequence[str],
    fields: Collection[str],
    build: Callable[[], dict[str, Tensor]],
) -> tuple[dict[str, Tensor], str]:
    """The tensors of an entry and their fingerprint, built if there is none or it is damaged.

    Args:
        folder: Where entries live.
        name: Readable first part of the entry's file name.
        origin: What the tensors are made from; anything that changes here makes another entry.
        fields: Names the entry must hold.
        build: Makes the tensors.
    """
    key = hashlib.sha256(json.dumps([_FORMAT, name, *origin]).encode()).hexdigest()[:16]
    path = folder / f"{name}-{key}.safetensors"
    entry = _read(path, fields)
    if entry is not None:
        return entry
    tensors = build()
    digest = fingerprint(tensors)
    _write(path, tensors, digest)
    return tensors, digest


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and raw bytes of some tensors, in order of the names."""
    digest = hashlib.sha256()
    for field in sorted(tensors):
        tensor = tensors[field].contiguous()
        digest.update(f"{field}:{tensor.dtype}:{list(tensor.shape)};".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def _read(path: Path, fields: Collection[str]) -> tuple[dict[str, Tensor], str] | None:
    """An intact entry, or None: a file cut short or altered is as good as no file."""
    safetensors = require("safetensors", "vision")
    try:
        with safetensors.safe_open(path, framework="pt") as entry:
            expected = (entry.metadata() or {}).get("sha256")
            tensors = {field: entry.get_tensor(field) for field in entry.keys()}  # noqa: SIM118  # not a dict
    except (OSError, safetensors.SafetensorError):
        return None
    if set(tensors) != set(fields) or fingerprint(tensors) != expected:
        return None
    return tensors, expected


def _write(path: Path, tensors: dict[str, Tensor], digest: str) -> None:
    """Complete or not at all: a temporary file that takes the entry's name when it is whole."""
    save_file = require("safetensors.torch", "vision").save_file
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
        os.close(handle)
        save_file(tensors, temporary, metadata={"sha256": digest})
        os.replace(temporary, path)
    except (OSError, require("safetensors", "vision").SafetensorError) as error:
        # A full disk or a read-only home costs time at the next start, not this run.
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        warnings.warn(
            f"decoded images could not be kept in {path.parent} ({error}); they will be decoded "
            "again next time; set SPHERE_CACHE to a writable folder",
            stacklevel=2,
        )
