"""Class-balancing reservoir sampling: balance between classes, a uniform sample within each."""

from typing import ClassVar

from sphere_replay.memory.by_class import ByClass
from sphere_replay.memory.state import check_policy
from sphere_replay.storage.trees import State


class ClassBalanced(ByClass):
    """Class-balancing reservoir sampling (Chrysakis & Moens, 2020).

    While there is room every row is kept. Once the memory is filled, a class that is the largest,
    or has been since, is called full, and

    - a row of a class that is not full replaces a random row of the largest class (of any of them,
      if they tie);
    - a row of a full class follows reservoir sampling within its class: as the n-th row of the
      class it is kept with probability (rows of the class in memory) / n, in place of a random one.

    So small classes are stored whole and full ones differ in size by at most one, if K is at least
    the number of classes; and the stored rows of a class are a uniform sample of all its rows. The
    latter is why a full class stays full: were it to evict again after shrinking, its recent rows
    would be favoured.
    """

    name: ClassVar[str] = "class-balanced"

    def __init__(self, label: str = "y") -> None:
        super().__init__(label)
        self._offered: dict[int, int] = {}
        self._full: set[int] = set()

    def _slot(self, label: int, uniform: float, capacity: int) -> int:
        held = self._held
        offered = self._offered[label] = self._offered.get(label, 0) + 1
        if label in self._full:
            index = int(uniform * offered)
            return held.slot(label, index) if index < held.count(label) else -1
        room = len(held) < capacity
        slot = held.fill(label) if room else held.replace(label, uniform)
        if len(held) == capacity:
            self._full.update(held.largest())
        return slot

    def state_dict(self) -> State:
        """The label's name, the slots of each class, rows offered of each, and the full classes."""
        return {
            "label": self.label,
            "held": self._held.state_dict(),
            "offered": dict(self._offered),
            "full": sorted(self._full),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state of a policy with the same label field."""
        check_policy(state, ("held", "offered", "full"), label=self.label, policy=self.name)
        self._load_held(state["held"])
        self._offered = dict(state["offered"])
        self._full = set(state["full"])
