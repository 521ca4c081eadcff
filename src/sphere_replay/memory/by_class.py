"""Policies that decide row by row, by the row's label and one draw."""

from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from sphere_replay.memory.admission import Offer
from sphere_replay.memory.class_slots import ClassSlots, offered_labels
from sphere_replay.memory.state import check_policy
from sphere_replay.storage.trees import State

_RECENT = 1 << 16
"""Rows that can be repeated, a few MB; before them, the whole state is saved."""


class ByClass(ABC):
    """Keeps the slots of each class, and the rows that it was offered last.

    Which slots a class has, and in which order, takes a number per slot of the memory. All of it
    follows from labels and draws, so these are what the changes of a batch hold instead.
    """

    name: ClassVar[str]
    draws: ClassVar[bool] = True

    def __init__(self, label: str = "y") -> None:
        self.label = label
        self._held = ClassSlots()
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    @abstractmethod
    def _slot(self, label: int, uniform: float, capacity: int) -> int:
        """The slot of one row, -1 if it is not kept."""

    def place(self, offer: Offer) -> Tensor:
        """The slot of each row, decided one after the other."""
        labels = offered_labels(offer, len(self._held), label=self.label, policy=self.name)
        slots = self._decide(labels, offer.uniforms, offer.capacity)
        return torch.tensor(slots, dtype=torch.int64, device="cpu")

    def offers(self, rows: int) -> State | None:
        """Labels int64 `[rows]` and draws float64 `[rows]` of the last rows, in stream order."""
        if rows > len(self._recent):
            return None
        last = list(islice(reversed(self._recent), rows))[::-1]
        return {
            "label": self.label,
            "labels": torch.tensor([label for label, _ in last], dtype=torch.int64, device="cpu"),
            "uniforms": torch.tensor([draw for _, draw in last], dtype=torch.float64, device="cpu"),
        }

    def repeat(self, offers: State, *, rows: int, capacity: int) -> None:
        """Decide about rows again, as the policy did that was offered them."""
        check_policy(offers, ("labels", "uniforms"), label=self.label, policy=self.name)
        labels, uniforms = offers["labels"], offers["uniforms"]
        if (labels.dtype, labels.shape) != (torch.int64, (rows,)) or (
            (uniforms.dtype, uniforms.shape) != (torch.float64, (rows,))
            or not bool(((uniforms >= 0) & (uniforms < 1)).all())
        ):
            raise ValueError(
                f"the changes of a {self.name} policy are damaged: {rows} rows were offered, each "
                "with a label int64 and a draw float64 in [0, 1); load a whole state instead"
            )
        self._decide(labels, uniforms, capacity)

    def _decide(self, labels: Tensor, uniforms: Tensor, capacity: int) -> list[int]:
        rows = list(zip(labels.tolist(), uniforms.tolist(), strict=True))
        self._recent.extend(rows)
        return [self._slot(label, uniform, capacity) for label, uniform in rows]

    def _load_held(self, held: State) -> None:
        self._held.load_state_dict(held)
        self._recent.clear()  # they led to another state
