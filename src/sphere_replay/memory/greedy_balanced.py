"""GDumb's greedy balancing sampler: equal quotas for the classes met so far."""

from typing import ClassVar

from sphere_replay.memory.by_class import ByClass
from sphere_replay.memory.state import check_policy
from sphere_replay.storage.trees import State


class GreedyBalanced(ByClass):
    """Keeps the first K // C rows of each of C classes (Prabhu et al. 2020).

    With k = K // C, C counting the classes in memory and the row's own, a row is kept if its class
    is new or has fewer than k rows. If the memory is full, a random row of the largest class (of
    any of them, if they tie) makes room. Rows beyond their quota are refused even while there is
    room, so early rows of a class are the ones that stay.
    """

    name: ClassVar[str] = "greedy-balanced"

    def _slot(self, label: int, uniform: float, capacity: int) -> int:
        held = self._held
        new = label not in held
        if not new and held.count(label) >= capacity // held.classes:
            return -1
        return held.fill(label) if len(held) < capacity else held.replace(label, uniform)

    def state_dict(self) -> State:
        """The label's name and the slots of each class."""
        return {"label": self.label, "held": self._held.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state of a policy with the same label field."""
        check_policy(state, ("held",), label=self.label, policy=self.name)
        self._load_held(state["held"])
