"""Replay in a trainer's checkpoint folder: `replay.safetensors` and `replay.json`."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphere_replay.config import described
from sphere_replay.errors import DataError
from sphere_replay.storage.files import plain
from sphere_replay.storage.saved import load_tree, save_tree

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NAME = "replay"
CHOICE = "allow_plain_checkpoint"
"""The one setting that says how to resume, not what to replay."""


def save_state(folder: Path, state: Mapping[str, object], arguments: "DataclassInstance") -> None:
    """Write the state and the arguments it belongs to."""
    save_tree(folder, NAME, state, head={"arguments": _spelled(arguments)})


def load_state(folder: Path, arguments: "DataclassInstance") -> dict[str, Any] | None:
    """What `save_state` wrote, if it was for the same arguments.

    None for a checkpoint without replay, if the arguments allow to begin with an empty memory.
    """
    if not (folder / f"{NAME}.json").is_file():
        if getattr(arguments, CHOICE):
            return None
        raise DataError(
            f"{folder} holds no replay state ({NAME}.json): it was saved without replay, or the "
            f"save was cut short; resume from an earlier checkpoint, or set {CHOICE}=True to begin "
            "replay there with an empty memory"
        )
    try:
        head, state = load_tree(folder, NAME)
    except DataError as error:
        raise DataError(f"{error}; resume from an earlier checkpoint") from error
    saved, wanted = head["arguments"], plain(_spelled(arguments), "arguments")
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


def _spelled(arguments: "DataclassInstance") -> dict[str, Any]:
    """The settings as plain values; a selection that is an object by its class and fields."""
    values = {entry.name: getattr(arguments, entry.name) for entry in fields(arguments)}
    select = values.pop("select")
    if not isinstance(select, str):
        select = described(select) if is_dataclass(select) else type(select).__qualname__
    return {name: value for name, value in values.items() if name != CHOICE} | {"select": select}
