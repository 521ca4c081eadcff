"""Bounded memory of tokenized examples of any length."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sphere_replay.language.rows import Row, class_numbers, row_length
from sphere_replay.memory import Admission, Memory
from sphere_replay.memory.state import check_keys
from sphere_replay.storage.trees import State

TASK = "task"


class TokenMemory:
    """Up to K rows and the task each came from.

    `slots` is an ordinary `Memory` that holds the tasks: it decides which rows are kept, and gives
    each slot its version. Beside it stands the row of every slot.

    Args:
        capacity: K, the number of slots.
        generator: Source of the admission's draws, on the CPU, used by nothing else.
        admission: Which rows a full memory keeps; reservoir sampling unless given.
    """

    def __init__(
        self, capacity: int, *, generator: torch.Generator, admission: Admission | None = None
    ) -> None:
        self.slots = Memory(capacity, admission, generator=generator)
        self._rows: list[Row] = []
        self._lengths: list[int] = []

    def __len__(self) -> int:
        """Filled slots."""
        return len(self.slots)

    @property
    def capacity(self) -> int:
        """K."""
        return self.slots.capacity

    @property
    def tasks(self) -> Tensor:
        """The task of each slot's row, int64 `[len]`."""
        return self.slots[TASK] if len(self) else torch.empty(0, dtype=torch.int64)

    def add(self, rows: Sequence[Row], tasks: Sequence[int] | Tensor) -> Tensor:
        """Offer rows in stream order; returns the slot of each, -1 if it is not kept."""
        numbers = torch.as_tensor(tasks, dtype=torch.int64).cpu()
        if numbers.shape != (len(rows),):
            raise ValueError(f"{len(rows)} rows need one task each, got {list(numbers.shape)}")
        if rows:
            self._check(rows)
        places = self.slots.add(task=numbers)
        added = len(self.slots) - len(self._rows)
        self._rows += [{} for _ in range(added)]
        self._lengths += [0] * added
        for row, place in zip(rows, places.tolist(), strict=True):
            if place >= 0:
                # A copy: a view would keep the whole batch it came from alive.
                self._rows[place] = {name: values.detach().clone() for name, values in row.items()}
                self._lengths[place] = row_length(row)
        return places

    def rows(self, indices: Tensor) -> list[Row]:
        """The rows in the given slots; shared, not copied."""
        return [self._rows[index] for index in indices.tolist()]

    def lengths(self, indices: Tensor) -> Tensor:
        """Tokens of the rows in the given slots, int64 `[n]`."""
        sizes = [self._lengths[index] for index in indices.tolist()]
        return torch.tensor(sizes, dtype=torch.int64)

    def answers(self, indices: Tensor) -> Tensor | None:
        """Class numbers int64 `[n]` of what the rows are to answer; None if that is free text."""
        return class_numbers(self.rows(indices), self.tasks[indices].tolist())

    def state_dict(self) -> State:
        """A tree of contiguous tensors: per field all rows' values end to end, and their lengths.

        `slots` is the state of the memory that holds the tasks.
        """
        rows = {}
        for name in self._rows[0] if self._rows else ():
            sizes = [len(row[name]) for row in self._rows]
            rows[name] = {
                "values": torch.cat([row[name] for row in self._rows]),
                "lengths": torch.tensor(sizes, dtype=torch.int64),
            }
        return {"slots": self.slots.state_dict(), "rows": rows}

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved memory of the same capacity and admission."""
        owner = "the saved token memory"
        check_keys(state, ("slots", "rows"), owner=owner)
        filled = len(state["slots"].get("versions", ()))
        fields: dict[str, list[Tensor]] = {}
        for name, saved in state["rows"].items():
            check_keys(saved, ("values", "lengths"), owner=f"{name} of {owner}")
            values, sizes = saved["values"], saved["lengths"].tolist()
            if len(sizes) != filled or sum(sizes) != len(values):
                raise ValueError(
                    f"{owner} is damaged: {len(sizes)} lengths of {name} that sum to {sum(sizes)}, "
                    f"for {filled} slots and {len(values)} values"
                )
            fields[name] = [part.clone() for part in torch.split(values.cpu(), sizes)]
        self.slots.load_state_dict(state["slots"])
        self._rows = [{name: fields[name][i] for name in fields} for i in range(filled)]
        self._lengths = [row_length(row) for row in self._rows]

    def _check(self, rows: Sequence[Row]) -> None:
        known = self._rows[0] if self._rows else rows[0]
        for number, row in enumerate(rows):
            if row.keys() != known.keys():
                raise ValueError(
                    f"row {number} has the fields {', '.join(row)}; this memory stores "
                    f"{', '.join(known)}, fixed by the first add()"
                )
            for name, values in row.items():
                if values.ndim != 1 or values.dtype != known[name].dtype:
                    raise ValueError(
                        f"{name} of row {number} must be {known[name].dtype} [t], got "
                        f"{values.dtype} {list(values.shape)}"
                    )
