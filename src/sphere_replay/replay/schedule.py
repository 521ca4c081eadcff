"""The schedule: when memories are rescored, which are candidates, and whose weights still hold.

Between rescorings weights belong to slot *versions*: a slot that was overwritten since, or is new,
has the uniform weight until it is scored.
"""

import torch
from torch import Tensor

from sphere_replay.allocation.sampling import draw_distinct
from sphere_replay.allocation.urn import Urn
from sphere_replay.memory import Memory
from sphere_replay.memory.memory import Mark
from sphere_replay.replay.selections import Weighting
from sphere_replay.storage.trees import State
from sphere_replay.validation import check_counts

STRETCH = 8
"""Times the longest interval, where hardly anything changes."""
WHOLE = 2
"""Passes of each candidate at a rescoring that saves none."""
_ECONOMICAL = ("interval", "draws", "saved")
"""What intervals depend on that are not always the same."""


class Schedule:
    """Counts draws, and keeps which slots were scored in which version.

    Args:
        every: Rescore at every n-th draw, and at the first of each task.
        pool: Score and draw from this many memories, chosen uniformly at each rescoring; None for
            the whole memory.
        longest: Let intervals double from one rescoring of a task to the next, up to this many
            draws; None keeps them at `every`.
        usual: Draws between the rescorings of a schedule that passes all candidates twice. No more
            passes are ever made than it would have made: what comes sooner must be paid for by
            passes that were saved. None: nobody counts.
        steady: Let them go on doubling, up to `STRETCH` times as many, while a smaller share of
            what the weights say was news at a rescoring, and of the memory is new.
    """

    def __init__(
        self,
        every: int,
        pool: int | None = None,
        longest: int | None = None,
        usual: int | None = None,
        steady: float = 0.0,
    ) -> None:
        check_counts(every=every, **({} if pool is None else {"pool": pool}))
        self.every = every
        self.pool = pool
        self.longest = longest
        self.usual = usual
        self.steady = steady
        self.scorings = 0
        """How many rescorings there have been."""
        self._interval = every
        self._draws_since = 0
        self._draws = 0
        """Since the task began."""
        self._saved = 0
        """Passes that the usual schedule would have made, less those that were made."""
        self._asked = True
        self._slots = torch.empty(0, dtype=torch.int64, device="cpu")
        self._all = True
        """Whether the slots are simply the first ones, in order."""
        self._versions = torch.empty(0, dtype=torch.int64, device="cpu")
        self._urn: Urn | None = None
        self._ordered: tuple[Tensor, ...] | None = None
        """Slots of a pool that is in the urn, ascending, and which candidates they are."""
        self._looked = Mark(0, 0)
        """When the urn was last renewed."""

    @property
    def slots(self) -> Tensor:
        """The candidates of the latest rescoring, int64 `[m]`."""
        return self._slots

    @property
    def rarest(self) -> int:
        """Draws between rescorings, at most."""
        if self.longest is None:
            return self.every
        return max(self.every, self.longest * (STRETCH if self.steady else 1))

    def due(self, memory: Memory, cost: int) -> bool:
        """Whether the next draw rescores, which takes so many passes at most."""
        if self._asked:
            return True
        if self._draws_since < self._interval and not self._outgrown(memory):
            return False
        return self.usual is None or self._saved + self._usual_passes(memory) >= cost

    def ask(self) -> None:
        """The next draw rescores, whatever the count."""
        self._asked = True

    def count(self, memory: Memory) -> None:
        """A draw was made."""
        if self._draws_since > 0:  # else `weighed` has just counted them
            self._saved += self._usual_passes(memory)
        self._draws_since += 1
        self._draws += 1

    def width(self, memory: Memory) -> int:
        """How many candidates a rescoring has now."""
        return len(memory) if self.pool is None else min(self.pool, len(memory))

    def candidates(self, memory: Memory, generator: torch.Generator) -> Tensor:
        """Slots `[m]` to score now."""
        size = len(memory)
        if self.pool is None or self.pool >= size:
            return torch.arange(size, device="cpu")
        return draw_distinct(size, self.pool, generator)

    def weighed(
        self, slots: Tensor, memory: Memory, drift: float | None = None, cost: int = 0
    ) -> None:
        """These candidates have weights from now on; counting starts again.

        `drift` is how much of what they say is news, if that is known; `cost` how many passes it
        took.

        Not before: if scoring fails, the weights that there are go with the slots that they are of,
        and the next draw rescores.
        """
        self._slots, self._all = slots, self.pool is None or self.pool >= len(memory)
        self._versions = memory.versions_of(slots)
        self._urn = None
        if self._asked or self.longest is None:
            self._interval = self.every
        else:
            still = drift is not None and drift < self.steady
            most = self.longest * (STRETCH if still else 1)
            self._interval = max(self.every, min(2 * self._interval, most))
        self._saved += self._usual_passes(memory) - cost
        if self._asked:
            self._draws = 0
        self._draws_since = 0
        self._asked = False
        self.scorings += 1

    def current(self, memory: Memory, weighting: Weighting) -> tuple[Tensor, Tensor]:
        """Candidate slots and their weights now; the whole memory is as large as it has become."""
        weights = weighting.weights.cpu()
        uniform = weighting.mass / len(weights)
        weights = weights.masked_fill(self._stale(memory), uniform)
        added = len(memory) - len(weights)
        if added == 0 or not self.whole(memory):
            return self._slots, weights
        everyone = torch.arange(len(memory), device="cpu")
        return everyone, torch.cat([weights, weights.new_full((added,), uniform)])

    def whole(self, memory: Memory) -> bool:
        """Whether all memories are candidates, those that came after the scoring included."""
        return self._all and (self.pool is None or len(memory) <= self.pool)

    def urn(self, memory: Memory, weighting: Weighting) -> Urn:
        """The weights of `current`, kept between draws: few of them are renewed."""
        whole = self.whole(memory)
        if self._urn is None or whole == (self._ordered is not None):
            self._urn = Urn(self.current(memory, weighting)[1], memory.capacity if whole else None)
            self._ordered = None if whole else tuple(self._slots.sort())
        elif len(places := self._candidates_among(memory.written(self._looked))):
            weights = weighting.weights.cpu()
            renewed = weights.new_full((len(places),), weighting.mass / len(weights))
            scored = (places < len(weights)).nonzero()[:, 0]
            known = places[scored]
            kept = scored[~memory.changed(self._versions[known], self._slots[known])]
            renewed[kept] = weights[places[kept]]
            self._urn.put(places, renewed)
        self._looked = memory.mark
        return self._urn

    def drawn(self, places: Tensor) -> Tensor:
        """The slots of what was drawn from the urn."""
        return places if self._ordered is None else self._slots[places]

    def _candidates_among(self, slots: Tensor) -> Tensor:
        """The places in the urn of those of these slots that have one."""
        if self._ordered is None:
            return slots
        ordered, order = self._ordered
        at = torch.searchsorted(ordered, slots).clamp_(max=len(ordered) - 1)
        return order[at[ordered[at] == slots]]

    def _usual_passes(self, memory: Memory) -> int:
        """What the usual schedule would pass at the next draw."""
        if self.usual is None or not (self._asked or self._draws % self.usual == 0):
            return 0
        return WHOLE * self.width(memory)

    def _outgrown(self, memory: Memory) -> bool:
        """Whether too much of the memory is new for an interval that is longer than the longest."""
        if self.longest is None or self._draws_since == 0 or self._draws_since % self.longest:
            return False  # it takes a look at all memories
        return 1 - self.scored_share(memory) > self.steady

    def scored_share(self, memory: Memory) -> float:
        """How much of the memory still holds what was scored."""
        return int((~self._stale(memory)).sum()) / len(memory)

    def _stale(self, memory: Memory) -> Tensor:
        """Which of the scored slots were overwritten since; bool `[m]`."""
        return memory.changed(self._versions, None if self._all else self._slots)

    def counters(self) -> State:
        """What moves between rescorings."""
        state: State = {
            "draws_since": self._draws_since,
            "asked": self._asked,
            "scorings": self.scorings,
        }
        if self.longest is not None:
            state |= {name: getattr(self, f"_{name}") for name in _ECONOMICAL}
        return state

    def load_counters(self, state: State) -> None:
        """Continue where `counters` were taken, by the weights of the last rescoring."""
        if state["scorings"] != self.scorings:
            raise ValueError(
                f"these changes follow rescoring {state['scorings']}, but {self.scorings} is what "
                "was loaded: load every set of changes, in order"
            )
        self._count_from(state)
        self._urn = None

    def state_dict(self) -> State:
        """Everything the next draw depends on, apart from the memory."""
        return {**self.counters(), "slots": self._slots, "versions": self._versions}

    def load_state_dict(self, state: State, memory: Memory) -> None:
        """Continue where `state_dict` was taken, on the memory of that moment."""
        slots = state["slots"]
        if len(slots) and int(slots.max()) >= len(memory):
            raise ValueError(
                f"the saved replay has weights for {int(slots.max()) + 1} memories, but the memory "
                f"holds {len(memory)}: load the state of the memory first"
            )
        self._count_from(state)
        self.scorings = state.get("scorings", 0)  # states of before had none
        self._slots, self._versions, self._urn = slots, state["versions"], None
        self._all = torch.equal(slots, torch.arange(len(slots), device=slots.device))

    def _count_from(self, state: State) -> None:
        self._draws_since, self._asked = state["draws_since"], state["asked"]
        for name in _ECONOMICAL if self.longest is not None else ():
            setattr(self, f"_{name}", state.get(name, 0))  # states of before had the interval alone
