"""Replay in a trainer's checkpoint folder: `replay.safetensors` and `replay.json`. No pickle."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphere_replay.storage.files import write_atomically
from sphere_replay.storage.trees import flatten, from_bytes, to_bytes, unflatten

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TENSORS, VALUES = "replay.safetensors", "replay.json"


def save_state(folder: Path, state: Mapping[str, Any], arguments: "DataclassInstance") -> None:
    """Write the state and the arguments it belongs to; the JSON, which vouches, last."""
    tensors, values = flatten(state)
    content = to_bytes(tensors)
    document = {
        "arguments": asdict(arguments),
        "sha256": hashlib.sha256(content).hexdigest(),
        "values": values,
    }
    write_atomically(folder / TENSORS, content)
    write_atomically(folder / VALUES, json.dumps(document, indent=1).encode())


def load_state(folder: Path, arguments: "DataclassInstance") -> dict[str, Any]:
    """What `save_state` wrote, if it was for the same arguments."""
    if not (folder / VALUES).is_file():
        raise ValueError(
            f"{folder} holds no replay state ({VALUES}): it was saved without replay, or the save "
            "was cut short; resume from an earlier checkpoint"
        )
    document = json.loads((folder / VALUES).read_text("utf-8"))
    saved, wanted = document["arguments"], asdict(arguments)
    different = [
        f"{name}: saved {saved.get(name)!r}, now {wanted.get(name)!r}"
        for name in sorted(saved.keys() | wanted.keys())
        if saved.get(name) != wanted.get(name)
    ]
    if different:
        raise ValueError(
            f"{folder} was saved with other replay arguments ({'; '.join(different)}): resume with "
            "those it was saved with, or start anew"
        )
    content = (folder / TENSORS).read_bytes()
    if hashlib.sha256(content).hexdigest() != document["sha256"]:
        raise ValueError(
            f"{folder / TENSORS} is damaged: it does not match the checksum in {VALUES}; resume "
            "from an earlier checkpoint"
        )
    return unflatten(from_bytes(content), document["values"])
