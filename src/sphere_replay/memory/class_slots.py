"""Which slots hold which class: the bookkeeping that label-based policies share."""

import torch
from torch import Tensor

from sphere_replay.memory.admission import Offer
from sphere_replay.memory.state import check_keys
from sphere_replay.storage.trees import State


class ClassSlots:
    """Slots by the class their example had when it was admitted.

    Plain integers and lists, as policies decide row by row. Relabelling a stored example in place
    does not move it to another class here.
    """

    def __init__(self) -> None:
        self._slots: dict[int, list[int]] = {}
        self._total = 0
        self._largest: list[int] = []
        """Found when asked for; empty until then. Of many classes few change their rank."""

    def __len__(self) -> int:
        """Filled slots over all classes."""
        return self._total

    def __contains__(self, label: int) -> bool:
        return label in self._slots

    @property
    def classes(self) -> int:
        """How many classes have at least one slot."""
        return len(self._slots)

    def count(self, label: int) -> int:
        """How many slots a class has."""
        return len(self._slots.get(label, ()))

    def slot(self, label: int, index: int) -> int:
        """One of the slots of a class, by its index among them."""
        return self._slots[label][index]

    def largest(self) -> list[int]:
        """The class with the most slots; several if they tie. Others must not write to it."""
        if not self._largest:
            most = max(map(len, self._slots.values()))
            self._largest = [label for label, slots in self._slots.items() if len(slots) == most]
        return self._largest

    def fill(self, label: int) -> int:
        """Give the first empty slot to a class."""
        slot = self._total
        self._slots.setdefault(label, []).append(slot)
        self._total += 1
        self._largest.clear()
        return slot

    def replace(self, label: int, uniform: float) -> int:
        """Give a slot of the largest class, drawn uniformly (over ties too), to another class."""
        largest = self.largest()
        most = len(self._slots[largest[0]])
        rank, index = divmod(int(uniform * most * len(largest)), most)
        loser = largest.pop(rank)
        slots = self._slots[loser]
        # The last slot moves into the gap: order carries no meaning, and this costs O(1).
        slot, slots[index] = slots[index], slots[-1]
        slots.pop()
        if not slots:
            del self._slots[loser]
        self._slots.setdefault(label, []).append(slot)
        if self.count(label) >= most:
            largest.clear()
        return slot

    def state_dict(self) -> State:
        """Slots of each class, counted and then listed class by class, in the order of draws."""
        slots = [slot for slots in self._slots.values() for slot in slots]
        return {
            "counts": {label: len(slots) for label, slots in self._slots.items()},
            "slots": torch.tensor(slots, dtype=torch.int64, device="cpu"),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        check_keys(state, ("counts", "slots"), owner="the state of a label-based policy")
        counts, slots = state["counts"], state["slots"].tolist()
        if sum(counts.values()) != len(slots):
            raise ValueError(
                f"the state of a label-based policy is damaged: {len(counts)} classes with counts "
                f"that sum to {sum(counts.values())}, {len(slots)} slots"
            )
        rest = iter(slots)
        self._slots = {label: [next(rest) for _ in range(count)] for label, count in counts.items()}
        self._total = len(slots)
        self._largest.clear()


def offered_labels(offer: Offer, held: int, *, label: str, policy: str) -> Tensor:
    """The rows' labels, integer `[n]`, if the policy holds as many slots as the memory."""
    values = offer.fields.get(label)
    if values is None:
        raise ValueError(
            f"{policy} admission reads labels from field {label!r}, but the offered fields are "
            f"{', '.join(offer.fields)}; add {label!r} or choose label=... from these"
        )
    if values.ndim != 1 or values.is_floating_point() or values.is_complex():
        raise ValueError(
            f"{policy} admission needs integer labels of shape [n] in field {label!r}, got "
            f"{values.dtype} {list(values.shape)}"
        )
    if held != offer.filled:
        raise ValueError(
            f"this {policy} policy has filled {held} slots but the memory {offer.filled}: "
            "give every memory a policy object of its own"
        )
    return values
