"""Tensors kept between runs: decoding or encoding 60,000 images happens once."""

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from sphere_replay.errors import DataError
from sphere_replay.storage.files import entry_name
from sphere_replay.storage.saved import load_tree, save_tree
from sphere_replay.storage.trees import fingerprint

_FORMAT = 2
"""Part of every key; raise it when decoding changes, and old entries are no longer found."""


def cache_folder(folder: str | Path | None = None) -> Path:
    """The given folder, else `$SPHERE_CACHE`, else `~/.cache/sphere-replay`."""
    chosen = folder or os.environ.get("SPHERE_CACHE") or "~/.cache/sphere-replay"
    return Path(chosen).expanduser()


def cached_tensors(
    folder: Path, name: str, origin: Sequence[str], build: Callable[[], dict[str, Tensor]]
) -> tuple[dict[str, Tensor], str]:
    """The tensors of an entry and their fingerprint, built if there is none or it is damaged.

    Args:
        folder: Where entries live.
        name: Readable first part of the names of the entry's files.
        origin: What the tensors are made from; anything that changes here makes another entry.
        build: Makes the tensors.
    """
    entry = entry_name(name, [_FORMAT, name, *origin])
    try:
        head, tensors = load_tree(folder, entry)
    except DataError:  # cut short or altered is as good as not there
        tensors = build()
        head = {"fingerprint": fingerprint(tensors)}
        _keep(folder, entry, tensors, head)
    return tensors, head["fingerprint"]


def _keep(folder: Path, entry: str, tensors: dict[str, Tensor], head: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_tree(folder, entry, tensors, head)
    except OSError as error:
        # A full disk or a read-only home costs time at the next start, not this run.
        warnings.warn(
            f"{entry} could not be kept in {folder} ({error}); it will be made again next time; "
            "set SPHERE_CACHE to a writable folder",
            stacklevel=3,
        )
