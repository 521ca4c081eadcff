"""Bounded memory of named fields in contiguous storage: what a learner remembers of its stream."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sphere_replay.memory.admission import Admission, Insight, Offer, Repeats
from sphere_replay.memory.changes import check_changed_rows
from sphere_replay.memory.reservoir import Reservoir
from sphere_replay.memory.rows import (
    check_names,
    check_rows,
    check_slots,
    claim,
    count_rows,
    describe_row,
)
from sphere_replay.memory.stamps import Stamps
from sphere_replay.memory.state import check_keys
from sphere_replay.storage.trees import State
from sphere_replay.validation import check_counts

_HEAD = ("capacity", "seen", "edits", "admission", "generator")
"""Entries of a state besides the rows; old states lack the number of edits."""


class Mark(NamedTuple):
    """A moment in the life of one memory object."""

    writes: int
    """Offers and edits so far."""
    seen: int
    """Rows offered so far."""
    edits: int = 0
    """Rows updated so far."""


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
        check_counts(capacity=capacity)
        if admission is not None and not isinstance(admission, Admission):
            raise TypeError(
                f"admission must be a policy such as ClassBalanced(), got {admission!r}; None is "
                "reservoir sampling"
            )
        self.capacity = capacity
        self.admission: Admission = Reservoir() if admission is None else admission
        self.generator = generator
        self.device = torch.device(device)
        self._check_generator()
        self._storage: dict[str, Tensor] = {}
        # Tensors made in inference mode could not be written to outside it. Decisions and versions
        # stay on the CPU: only fields are worth a transfer.
        with torch.inference_mode(False):
            self._versions = torch.full((capacity,), -1, device="cpu")
            self._stamps = Stamps(capacity)
        self._filled = 0
        self._seen = 0
        self._edits = 0
        self._writes = 0
        self.loaded = 0
        """The write that put another state in place of all that was before."""

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

    def versions_of(self, slots: Tensor) -> Tensor:
        """The versions of some slots, int64 `[n]`, on the CPU: no copy of all."""
        return self._versions[slots]

    def changed(self, versions: Tensor, slots: Tensor | None = None) -> Tensor:
        """Which slots, the first n or those given, hold another example than in these `versions`.

        bool `[n]`, on the CPU, as the versions are.
        """
        now = self._versions[: len(versions)] if slots is None else self._versions[slots]
        return now != versions

    @property
    def mark(self) -> Mark:
        """Now, for `changes` that are asked for later."""
        return Mark(self._writes, self._seen, self._edits)

    def written(self, since: Mark) -> Tensor:
        """Slots, ascending, that were written after a `mark` of this memory; int64, on the CPU."""
        slots = self._stamps.after(since.writes)
        return slots[slots < self._filled]

    def add(self, insight: Insight | None = None, /, **fields: Tensor) -> Tensor:
        """Offer a batch of n rows, `[n, ...]` per field, in stream order.

        The first call with any rows fixes the fields, their dtypes and row shapes. Some policies
        ask for an `Insight` of the learner.

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
        before = None if self.generator is None else self.generator.get_state()
        try:
            slots = self.admission.place(self._offer(fields, count, insight or Insight()))
        except BaseException:
            if self.generator is not None and before is not None:
                self.generator.set_state(before)  # an offer that raises moves no later draw
            raise
        self._writes += 1
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
        rows = _last_of_each(slots)
        self._writes += 1
        self._edits += count
        self._write(self._storage, slots[rows], rows, fields)

    def state_dict(self) -> State:
        """Everything needed to continue: a tree of contiguous tensors, numbers and text.

        Only filled slots are saved, and the generator's state with them.
        """
        return {
            **self._head(self.admission.state_dict()),
            "versions": self.versions,
            "fields": {name: self[name].clone() for name in self._storage},
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved memory of the same capacity, admission and fields.

        A memory that has no fields yet takes those of the state. The generator this memory was
        built with is set to the saved state.
        """
        self._check_state(state)
        storage = self._storage or self._allocate(state["fields"])
        self._load_head(state)
        self._storage = storage
        self._filled = len(state["versions"])
        self._versions.fill_(-1)[: self._filled] = state["versions"]
        self._writes += 1
        self.loaded = self._writes
        self._stamps.put_all(self._writes)
        for name, values in state["fields"].items():
            self[name].copy_(values)

    def changes(self, since: Mark) -> State:
        """What happened after a `mark` of this memory: a state of the rows that changed alone.

        With the `state_dict()` of that moment it is everything needed to continue: a large memory
        is saved whole once, and by its changes from then on.
        """
        if not isinstance(since, Mark):
            raise TypeError(f"since is a `mark` of this memory, got {since!r}")
        if not self.loaded <= since.writes <= self._writes:
            raise ValueError(
                "this mark is of another memory, or older than the state that was loaded into this "
                "one: save state_dict() once more, and take a new mark with it"
            )
        offers = None
        if isinstance(self.admission, Repeats):
            offers = self.admission.offers(self._seen - since.seen)
        slots = self.written(since)
        return {
            **self._head(self.admission.state_dict() if offers is None else {}),
            "offers": offers,
            "after": {"seen": since.seen, "edits": since.edits},
            "filled": self._filled,
            "slots": slots,
            "versions": self._versions[slots],
            "fields": self.take(slots) if self._storage else {},
        }

    def apply_changes(self, changes: State) -> None:
        """Go on from the state that the changes follow, to the moment they were taken.

        Changes that follow another state, or are damaged, are refused before anything is written.
        """
        self._check_changes(changes)
        slots, fields = changes["slots"].cpu(), changes["fields"]
        storage = self._storage or self._allocate(fields)
        self._load_head(changes)
        self._storage = storage
        self._filled = changes["filled"]
        self._versions[slots] = changes["versions"].cpu()
        self._writes += 1
        self._write(storage, slots, torch.arange(len(slots), device="cpu"), fields)

    def _offer(self, fields: Mapping[str, Tensor], count: int, insight: Insight) -> Offer:
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
            insight=insight,
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
        self._stamps.put(places, self._writes)
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

    def _head(self, policy: State) -> State:
        """Everything but the rows."""
        return {
            "capacity": self.capacity,
            "seen": self._seen,
            "edits": self._edits,
            "admission": {"name": self.admission.name, **policy},
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def _load_head(self, state: State) -> None:
        saved = state["generator"]
        if self.generator is not None:
            torch.Generator().set_state(saved.cpu())  # raises before anything has changed
        self._load_policy(state)
        if self.generator is not None:
            self.generator.set_state(saved.cpu())
        self._seen = state["seen"]
        self._edits = state.get("edits", 0)

    def _load_policy(self, state: State) -> None:
        policy, offers = dict(state["admission"]), state.get("offers")
        del policy["name"]
        if offers is None:
            self.admission.load_state_dict(policy)
        elif isinstance(self.admission, Repeats):
            rows = state["seen"] - self._seen
            self.admission.repeat(offers, rows=rows, capacity=self.capacity)
        else:
            raise ValueError(
                f"these changes hold offers, which {self.admission.name} admission cannot repeat: "
                "load a whole state instead"
            )

    def _check_state(self, state: State) -> None:
        """Compare all but the policy's own state with this memory."""
        owner = "the saved memory"
        check_keys({"edits": 0, **state}, (*_HEAD, "versions", "fields"), owner=owner)
        self._check_head(state)
        capacity, fields = state["capacity"], state["fields"]
        if self._storage:
            check_names(fields, self._storage, all_of=True)
            check_rows(fields, self._storage)
        filled, rows = len(state["versions"]), count_rows(fields) if fields else 0
        if rows != filled or filled > capacity:
            raise ValueError(
                f"{owner} is damaged: {filled} versions for {rows} rows in {capacity} slots"
            )

    def _check_changes(self, changes: State) -> None:
        """Compare all but the policy's own changes with this memory."""
        entries = (*_HEAD, "offers", "after", "filled", "slots", "versions", "fields")
        check_keys(changes, entries, owner="a set of changes")
        self._check_head(changes)
        after, now = changes["after"], {"seen": self._seen, "edits": self._edits}
        check_keys(after, tuple(now), owner="what changes follow")
        if after != now:
            raise ValueError(
                f"these changes follow a memory with {after['seen']} rows seen and "
                f"{after['edits']} edited, this one has {self._seen} and {self._edits}: load what "
                "they follow, then apply all changes in order"
            )
        if self._storage:
            check_names(changes["fields"], self._storage, all_of=True)
            check_rows(changes["fields"], self._storage)
        check_changed_rows(changes, self._versions, self._filled)

    def _check_head(self, state: State) -> None:
        owner, capacity = "the saved memory", state["capacity"]
        admission = state["admission"].get("name", "no")
        if capacity != self.capacity:
            raise ValueError(f"{owner} has capacity {capacity}, this one {self.capacity}")
        if admission != self.admission.name:
            raise ValueError(f"{owner} has {admission} admission, this one {self.admission.name}")
        if (state["generator"] is None) != (self.generator is None):
            has = "no" if state["generator"] is None else "a"
            raise ValueError(f"{owner} has {has} generator, this one differs: build it likewise")


def _last_of_each(slots: Tensor) -> Tensor:
    """Rows `[k]`, in order, that are the last of those that share their slot."""
    distinct, belongs = torch.unique(slots, return_inverse=True)
    last = torch.full((len(distinct),), -1, device="cpu")
    claim(last, belongs, torch.arange(len(slots), device="cpu"))
    return last.sort().values
