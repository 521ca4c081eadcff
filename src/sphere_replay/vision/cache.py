"""Tensors kept between runs, as safetensors: decoding or encoding 60,000 images happens once."""

import os
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from torch import Tensor

from sphere_replay.extras import require
from sphere_replay.storage.files import entry_name, replacing
from sphere_replay.storage.trees import fingerprint

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
    path = folder / f"{entry_name(name, [_FORMAT, name, *origin])}.safetensors"
    entry = _read(path, fields)
    if entry is not None:
        return entry
    tensors = build()
    digest = fingerprint(tensors)
    _write(path, tensors, digest)
    return tensors, digest


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
    """Keep an entry, or warn that it could not be kept."""
    save_file = require("safetensors.torch", "vision").save_file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata={"sha256": digest})
    except (OSError, require("safetensors", "vision").SafetensorError) as error:
        # A full disk or a read-only home costs time at the next start, not this run.
        warnings.warn(
            f"{path.name} could not be kept in {path.parent} ({error}); it will be made again next "
            "time; set SPHERE_CACHE to a writable folder",
            stacklevel=2,
        )
