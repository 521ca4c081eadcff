"""Replay in a trainer's checkpoint folder: `replay.safetensors` and `replay.json`."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphere_replay.errors import DataError
from sphere_replay.storage.files import plain
from sphere_replay.storage.saved import load_tree, save_tree

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NAME = "replay"


def save_state(folder: Path, state: Mapping[str, object], arguments: "DataclassInstance") -> None:
    """Write the state and the arguments it belongs to."""
    save_tree(folder, NAME, state, head={"arguments": asdict(arguments)})


def load_state(folder: Path, arguments: "DataclassInstance") -> dict[str, Any]:
    """What `save_state` wrote, if it was for the same arguments."""
    if not (folder / f"{NAME}.json").is_file():
        raise DataError(
            f"{folder} holds no replay state ({NAME}.json): it was saved without replay, or the "
            "save was cut short; resume from an earlier checkpoint"
        )
    try:
        head, state = load_tree(folder, NAME)
    except DataError as error:
        raise DataError(f"{error}; resume from an earlier checkpoint") from error
    saved, wanted = head["arguments"], plain(asdict(arguments), "arguments")
    different = [
        f"{name}: saved {saved.get(name)!r}, now {wanted.get(name)!r}"
        for name in sorted(saved.keys() | wanted.keys())
        if saved.get(name) != wanted.get(name)
    ]
    if different:
        raise DataError(
            f"{folder} was saved with other replay arguments ({'; '.join(different)}): resume with "
            "those it was saved with, or start anew"
        )
    return state
