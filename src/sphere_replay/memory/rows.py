"""Rows of named fields: what they look like, and the checks before any of them is written."""

from collections.abc import Mapping

import torch
from torch import Tensor


def describe_row(values: Tensor) -> str:
    """Dtype and shape of one row of a field `[n, ...]`, such as "uint8 [3, 32, 32]"."""
    return f"{str(values.dtype).removeprefix('torch.')} {list(values.shape[1:])}"


def count_rows(fields: Mapping[str, Tensor]) -> int:
    """The number of rows that all fields share."""
    if not fields:
        raise ValueError("no field given: pass at least one, as in add(x=images, y=labels)")
    for name, values in fields.items():
        if not isinstance(values, Tensor):
            raise TypeError(f"field {name!r} must be a torch.Tensor, got {type(values).__name__}")
        if values.ndim == 0:
            raise ValueError(f"field {name!r} must have shape [n, ...], got []; use .unsqueeze(0)")
    counts = {len(values) for values in fields.values()}
    if len(counts) > 1:
        listed = ", ".join(f"{name}: {len(values)}" for name, values in fields.items())
        raise ValueError(f"fields need the same number of rows, got {listed}")
    return counts.pop()


def check_names(fields: Mapping[str, Tensor], known: Mapping[str, Tensor], *, all_of: bool) -> None:
    """Only known names; all of them if asked for."""
    if fields.keys() == known.keys():
        return
    unknown = [name for name in fields if name not in known]
    missing = [name for name in known if name not in fields] if all_of else []
    if unknown or missing:
        problems = [f"unknown field {name!r}" for name in unknown]
        problems += [f"missing field {name!r}" for name in missing]
        stored = ", ".join(known) or "none yet"
        raise ValueError(
            f"{', '.join(problems)}: this memory stores {stored}, fixed by the first add()"
        )


def check_rows(fields: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> None:
    """Every row has the shape and dtype of its field's storage."""
    for name, values in fields.items():
        stored = known[name]
        if values.dtype != stored.dtype or values.shape[1:] != stored.shape[1:]:
            raise ValueError(
                f"rows of field {name!r} are {describe_row(stored)}, fixed by the first add(), "
                f"got {describe_row(values)}; reshape or convert them first"
            )


def check_slots(indices: Tensor, filled: int) -> None:
    """Indices of filled slots, integer `[n]`."""
    if not isinstance(indices, Tensor):
        raise TypeError(f"indices must be a torch.Tensor, got {type(indices).__name__}")
    if indices.ndim != 1 or indices.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"indices must be int64 of shape [n], got {indices.dtype} {list(indices.shape)}; "
            "turn a mask into indices with .nonzero().squeeze(1)"
        )
    if len(indices) == 0:
        return
    low, high = (int(bound) for bound in indices.aminmax())
    if low < 0 or high >= filled:
        wrong = low if low < 0 else high
        held = f"slots 0 to {filled - 1} are" if filled else "none is"
        raise IndexError(f"slot {wrong} is not filled: {held}")


def claim(marks: Tensor, slots: Tensor, order: Tensor) -> Tensor:
    """Let the last of the rows that share a slot have it, and mark the slot with its number.

    Args:
        marks: int64 `[K]`, below every number in `order`; changed in place.
        slots: The slot of each row, int64 `[n]`.
        order: The rows' numbers, increasing, int64 `[n]`.

    Returns:
        Which rows have their slot, bool `[n]`.
    """
    # Unlike plain indexed assignment, a maximum is defined when an index comes twice.
    marks.scatter_reduce_(0, slots, order, "amax")
    return marks[slots] == order
