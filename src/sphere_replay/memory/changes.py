"""What a set of changes must be before any of it is written into a memory."""

import torch
from torch import Tensor

from sphere_replay.memory.rows import count_rows
from sphere_replay.storage.trees import State


def check_changed_rows(changes: State, versions: Tensor, filled: int) -> None:
    """Slots, versions and rows that can follow a memory.

    Args:
        changes: Of `Memory.changes`; may be damaged.
        versions: Of all slots of the memory that they follow, int64 `[K]`; -1 if empty.
        filled: Filled slots of that memory.
    """
    damage = _damage(changes, versions, filled)
    if damage:
        raise ValueError(
            f"these changes are damaged: {damage}; nothing was applied: read them again, or load a "
            "whole state of a later moment"
        )


def _damage(changes: State, known: Tensor, filled: int) -> str | None:
    after = changes["after"]
    if changes["seen"] < after["seen"] or changes["edits"] < after["edits"]:
        return "they end before they begin"
    slots, versions, fields = changes["slots"], changes["versions"], changes["fields"]
    for name, values in (("slots", slots), ("versions", versions)):
        if not isinstance(values, Tensor) or values.dtype != torch.int64 or values.ndim != 1:
            return f"{name} must be int64 of shape [n]"
    slots, versions = slots.cpu(), versions.cpu()
    rows = count_rows(fields) if fields else 0
    if not len(slots) == len(versions) == rows:
        return f"{len(slots)} slots and {len(versions)} versions for {rows} rows"
    until = changes["filled"]
    if not filled <= until <= len(known):
        return f"{until} slots filled, after {filled} of {len(known)} were"
    outside = (slots < 0) | (slots >= until)
    if bool(outside.any()):
        return f"slot {int(slots[outside][0])} is not among the {until} that are filled"
    if bool((slots.diff() <= 0).any()):
        return "slots must ascend"
    if int((slots >= filled).sum()) < until - filled:
        return f"they leave gaps in slots {filled} to {until - 1}, which were filled"
    first, last = after["seen"], changes["seen"]
    same = (versions >= 0) & (versions == known[slots])
    wrong = ~(same | ((versions >= first) & (versions < last)))
    if bool(wrong.any()):
        return (
            f"slot {int(slots[wrong][0])} has version {int(versions[wrong][0])}, which is neither "
            f"its old one nor of rows {first} to {last - 1}"
        )
    return None
