"""State on the disk: a pair of files, `NAME.safetensors` and `NAME.json`. No pickle.

The first holds the tensors, the second everything else, a checksum of its own content, and the size
and SHA-256 of the tensors it belongs to. It is written last: a pair that verifies was completed.

    save_tree(folder, "replay", {"memory": memory.state_dict()}, head={"seed": 0})
    head, tree = load_tree(folder, "replay")
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sphere_replay.errors import DataError
from sphere_replay.storage.files import plain, read_json, write_atomically
from sphere_replay.storage.trees import flatten, from_bytes, to_bytes, unflatten

FORMAT = 1


def save_tree(
    folder: Path, name: str, tree: Mapping[str, object], head: Mapping[str, object] | None = None
) -> None:
    """Write a tree, see `flatten`, and in front of it what it belongs to, as JSON knows it.

    A save that is cut short leaves what was there before, or a pair that `load_tree` refuses.
    """
    tensors, state = flatten(tree)
    content, document = pair(tensors, head=plain(head or {}, "head"), state=state)
    write_atomically(folder / f"{name}.safetensors", content)
    write_atomically(folder / f"{name}.json", document)


def load_tree(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Head and tree of a pair that `save_tree` has completed; a DataError if there is none."""
    document = folder / f"{name}.json"
    if not document.exists():
        raise DataError(f"{document} does not exist: nothing was saved, or the save was cut short")
    try:
        content, saved = verified(document, folder / f"{name}.safetensors")
    except (OSError, ValueError) as error:
        raise DataError(str(error)) from error
    return saved["head"], unflatten(from_bytes(content), saved["state"])


def pair(tensors: Mapping[str, Tensor], **parts: object) -> tuple[bytes, bytes]:
    """What the two files hold: the tensors, and the JSON that vouches for them."""
    content = to_bytes(tensors)
    body = {
        "format": FORMAT,
        "tensors": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)},
        **parts,
    }
    return content, json.dumps({**body, "sha256": _digest(body)}, allow_nan=False).encode()


def verified(document: Path, tensors: Path) -> tuple[bytes, dict[str, Any]]:
    """Tensors and JSON of a pair of files, if both are intact and belong together."""
    saved = read_json(document)
    digest = saved.pop("sha256", None)
    if saved.get("format", FORMAT) != FORMAT:
        raise ValueError(
            f"{document} has format {saved['format']}, this version reads {FORMAT}: update "
            "sphere-replay"
        )
    if digest != _digest(saved):
        raise ValueError(f"{document} is damaged: its content does not match its checksum")
    if not tensors.exists():
        raise ValueError(f"{tensors} is missing")
    content = tensors.read_bytes()
    size = saved["tensors"]["size"]
    if len(content) != size:
        raise ValueError(f"{tensors} has {len(content)} bytes, {document.name} expects {size}")
    if hashlib.sha256(content).hexdigest() != saved["tensors"]["sha256"]:
        raise ValueError(f"{tensors} is damaged: it does not match the checksum in {document.name}")
    return content, saved


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()
