"""Bounded memory of named fields in contiguous storage: what a learner remembers of its stream."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sphere_replay.memory.admission import Admission, Offer
from sphere_replay.memory.reservoir import Reservoir
from sphere_replay.memory.rows import (
    check_names,
    check_rows,
    check_slots,
    claim,
    count_rows,
    describe_row,
)
from sphere_replay.memory.state import check_keys
from sphere_replay.storage.trees import State


class Memory:
    """Up to K examples, each a row of every field, in slots 0, ..., len - 1.

        memory = Memory(500, generator=torch.Generator().manual_seed(0))
        memory.add(x=images, y=labels)
        memory["x"], memory["y"]

    Storage is allocated once, by the first `add`, and written in place from then on.

    Args:
        capacity: K, the number of slots.
        admission: Which rows a full memory keeps; `Reservoir()` unless given.
        generator: Source of the policy's draws, on the CPU: one float64 per offered row, in stream
            order. Leave it to the memory alone, and what is kept depends only on its seed and the
            stream, not on batch sizes or on whatever else a run draws.
        device: Where the fields live.
    """

    def __init__(
        self,
        capacity: int,
        admission: Admission | None = None,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self.admission: Admission = Reservoir() if admission is None else admission
        self.generator = generator
        self.device = torch.device(device)
        self._check_generator()
        self._storage: dict[str, Tensor] = {}
        # Decisions and versions stay on the CPU: only fields are worth a transfer.
        self._versions = torch.full((capacity,), -1, device="cpu")
        self._filled = 0
        self._seen = 0

    def __len__(self) -> int:
        """Filled slots."""
        return self._filled

    def __contains__(self, name: object) -> bool:
        return name in self._storage

    def __getitem__(self, name: str) -> Tensor:
        """All rows of a field, `[len, ...]`: a view, which later calls of `add` write into."""
        if name not in self._storage:
            stored = ", ".join(self._storage) or "none before the first add()"
            raise KeyError(f"no field {name!r} in this memory; its fields: {stored}")
        return self._storage[name][: self._filled]

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{name}: {describe_row(values)}" for name, values in self._storage.items()
        )
        return (
            f"Memory({self._filled}/{self.capacity} filled, {self._seen} seen, "
            f"{self.admission.name}, {rows or 'no fields yet'})"
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, in the order of the first `add`; empty before it."""
        return tuple(self._storage)

    @property
    def seen(self) -> int:
        """Rows offered so far."""
        return self._seen

    @property
    def versions(self) -> Tensor:
        """The stream position (from 0) of each slot's example, int64 `[len]`: a copy.

        A slot's version changes whenever the slot gets a new example, and no version ever comes
        back, so values computed for a slot are still about its example iff the versions agree.
        """
        return self._versions[: self._filled].to(self.device, copy=True)

    def add(self, **fields: Tensor) -> Tensor:
        """Offer a batch of n rows, `[n, ...]` per field, in stream order.

        The first call with any rows fixes the fields, their dtypes and row shapes.

        Returns:
            The slot each row went to, int64 `[n]`; -1 if it was refused, or overwritten by a later
            row of the same batch.
        """
        count = count_rows(fields)
        if self._storage:
            check_names(fields, self._storage, all_of=True)
            check_rows(fields, self._storage)
        if count == 0:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        storage = self._storage or self._allocate(fields)
        slots = self.admission.place(self._offer(fields, count))
        rows = (slots >= 0).nonzero().squeeze(1)
        if len(rows):
            won = claim(self._versions, slots[rows], rows + self._seen)
            self._grow(int(slots.max()) + 1)
            if not won.all():
                slots[rows[~won]] = -1
                rows = rows[won]
            self._write(storage, slots[rows], rows, fields)
        self._storage = storage
        self._seen += count
        return slots.to(self.device)

    def take(self, indices: Tensor) -> dict[str, Tensor]:
        """Copies of the rows in the given slots, `[n, ...]` per field."""
        check_slots(indices, self._filled)
        indices = indices.to(self.device)
        return {name: values.index_select(0, indices) for name, values in self._storage.items()}

    def update(self, indices: Tensor, **fields: Tensor) -> None:
        """Overwrite the given fields in the given slots, `[n, ...]` per field.

        For what is learnt about an example, such as fresher logits: the example stays the same, and
        so does its version. If a slot is given twice, its last row counts.
        """
        check_slots(indices, self._filled)
        count = count_rows(fields)
        check_names(fields, self._storage, all_of=False)
        check_rows(fields, self._storage)
        if count != len(indices):
            raise ValueError(f"{len(indices)} slots but {count} rows: update needs one per slot")
        slots = indices.cpu().long()
        won = claim(torch.full_like(self._versions, -1), slots, torch.arange(count, device="cpu"))
        rows = won.nonzero().squeeze(1)
        self._write(self._storage, slots[rows], rows, fields)

    def state_dict(self) -> State:
        """Everything needed to continue: a tree of contiguous tensors, numbers and text.

        Only filled slots are saved, and the generator's state with them.
        """
        return {
            "capacity": self.capacity,
            "seen": self._seen,
            "admission": {"name": self.admission.name, **self.admission.state_dict()},
            "generator": None if self.generator is None else self.generator.get_state(),
            "versions": self.versions,
            "fields": {name: self[name].clone() for name in self._storage},
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved memory of the same capacity, admission and fields.

        A memory that has no fields yet takes those of the state. The generator this memory was
        built with is set to the saved state.
        """
        self._check_state(state)
        saved, policy = state["generator"], dict(state["admission"])
        del policy["name"]
        if self.generator is not None:
            torch.Generator().set_state(saved.cpu())  # raises before anything has changed
        self.admission.load_state_dict(policy)
        if self.generator is not None:
            self.generator.set_state(saved.cpu())
        self._storage = self._storage or self._allocate(state["fields"])
        self._filled = len(state["versions"])
        self._seen = state["seen"]
        self._versions.fill_(-1)[: self._filled] = state["versions"]
        for name, values in state["fields"].items():
            self[name].copy_(values)

    def _offer(self, fields: Mapping[str, Tensor], count: int) -> Offer:
        uniforms = torch.empty(
            count if self.admission.draws else 0, dtype=torch.float64, device="cpu"
        )
        return Offer(
            fields=fields,
            uniforms=uniforms.uniform_(generator=self.generator),
            count=count,
            seen=self._seen,
            filled=self._filled,
            capacity=self.capacity,
            stored={name: self[name] for name in self._storage},
        )

    def _grow(self, filled: int) -> None:
        if filled > self._filled and bool((self._versions[self._filled : filled] < 0).any()):
            raise RuntimeError(
                f"{self.admission.name} admission left a gap below slot {filled - 1}: a policy "
                f"must fill empty slots from the lowest, here {self._filled}"
            )
        self._filled = max(self._filled, filled)

    def _allocate(self, fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # A tensor made in inference mode could not be written to outside it.
        with torch.inference_mode(False):
            return {
                name: torch.zeros(
                    (self.capacity, *values.shape[1:]), dtype=values.dtype, device=self.device
                )
                for name, values in fields.items()
            }

    def _write(
        self,
        storage: Mapping[str, Tensor],
        places: Tensor,
        rows: Tensor,
        fields: Mapping[str, Tensor],
    ) -> None:
        places = places.to(self.device)
        for name, values in fields.items():
            chosen = values.detach()
            if len(rows) < len(values):
                chosen = chosen.index_select(0, rows.to(values.device))
            storage[name].index_copy_(0, places, chosen.to(self.device))

    def _check_generator(self) -> None:
        if not self.admission.draws:
            return
        if self.generator is None:
            raise ValueError(
                f"{self.admission.name} admission draws at random: pass "
                "generator=torch.Generator().manual_seed(seed), used by nothing else"
            )
        if self.generator.device.type != "cpu":
            raise ValueError(
                f"the generator must be on the CPU, got one on {self.generator.device}: what is "
                "kept must not depend on the device"
            )

    def _check_state(self, state: State) -> None:
        """Compare all but the policy's own state with this memory."""
        owner = "the saved memory"
        entries = ("capacity", "seen", "admission", "generator", "versions", "fields")
        check_keys(state, entries, owner=owner)
        capacity, fields = state["capacity"], state["fields"]
        admission = state["admission"].get("name", "no")
        if capacity != self.capacity:
            raise ValueError(f"{owner} has capacity {capacity}, this one {self.capacity}")
        if admission != self.admission.name:
            raise ValueError(f"{owner} has {admission} admission, this one {self.admission.name}")
        if (state["generator"] is None) != (self.generator is None):
            has = "no" if state["generator"] is None else "a"
            raise ValueError(f"{owner} has {has} generator, this one differs: build it likewise")
        if self._storage:
            check_names(fields, self._storage, all_of=True)
            check_rows(fields, self._storage)
        filled, rows = len(state["versions"]), count_rows(fields) if fields else 0
        if rows != filled or filled > capacity:
            raise ValueError(
                f"{owner} is damaged: {filled} versions for {rows} rows in {capacity} slots"
            )
