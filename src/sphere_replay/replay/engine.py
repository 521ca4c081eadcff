"""The engine: weighing and schedule put together, and draws made by them."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from sphere_replay.allocation.sampling import LARGE, Scheme, draw, draw_distinct
from sphere_replay.memory import Memory
from sphere_replay.numeric import as_probabilities
from sphere_replay.replay.economy import Economy, Labels, Scorer, economical_scores
from sphere_replay.replay.passing import Passing
from sphere_replay.replay.schedule import WHOLE, Schedule
from sphere_replay.replay.selections import Selection, Uniform, Weighting
from sphere_replay.replay.weighing import Weigher
from sphere_replay.scoring import Scores
from sphere_replay.storage.trees import State

Onlooker = Callable[[Scorer], None]
"""Told, before a draw by fresh weights, how memories are scored; it must change nothing."""


@dataclass(frozen=True)
class Draw:
    """Memories to replay now, the factor of their mean loss, and how they were found."""

    indices: Tensor
    """Slots `[b]`."""
    scale: float
    fields: dict[str, Tensor]
    weighting: Weighting | None = None
    """What the draw was made by, without what that was made of, so that no draw holds on to a
    geometry: see `Engine.weighting`. None if no selection had a say."""
    rescored: bool = False
    """Whether memories were scored for it."""
    cost: int = 0
    """Examples passed forward to score them."""
    versions: Tensor | None = None
    """Of the slots `[b]`: whether they still hold what was drawn."""

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    def __len__(self) -> int:
        return len(self.indices)


class Engine:
    """Draws memories by a selection; who scores them is said at each draw.

    Args:
        memory: What there is to replay.
        selection: How memories are weighed.
        generator: The only source of candidates, draws and shuffles.
        every: Rescore at every n-th draw, and at the first of each task; the selection's own
            interval unless given.
        pool: Score and draw from this many memories, chosen uniformly at each rescoring; None
            scores the whole memory.
        replacement: Draw with replacement.
        unit_mass: Ignore the mass s_w: the drawn mean loss counts fully, whatever the weights.
        economy: Score less, see `Economy`; None scores all candidates, as the paper does.
    """

    def __init__(
        self,
        memory: Memory,
        selection: Selection | None = None,
        *,
        generator: torch.Generator,
        every: int | None = None,
        pool: int | None = None,
        replacement: bool = False,
        unit_mass: bool = False,
        economy: Economy | None = None,
    ) -> None:
        selection = selection or Uniform()
        self.memory = memory
        every = selection.every if every is None else every
        if economy is None:
            self.schedule = Schedule(every, pool)
        else:
            shortest, longest = min(every, economy.shortest), max(every, economy.longest)
            self.schedule = Schedule(shortest, pool, longest, every, economy.steady)
        self.weigher = Weigher(selection, generator)
        self.replacement = replacement
        self.unit_mass = unit_mass
        self.seconds = 0.0
        """Spent on scoring and weighing so far."""
        self.passes = 0
        """Examples passed forward for it so far."""
        self.watch: Onlooker | None = None
        """Whoever looks on, such as a recorder."""
        self.drawn: Callable[[Tensor], None] | None = None
        """Told the slots of every draw; whoever counts them."""
        self._generator = generator
        self._economy = economy
        self._passing = None
        if economy is not None and economy.reuse and selection.needs_features:
            self._passing = Passing(memory, economy.reuse)
        self._moment = self._scored = self._loaded = 0
        """How many states there have been so far, and when memories were scored, or one loaded."""

    @property
    def selection(self) -> Selection:
        """How memories are weighed."""
        return self.weigher.selection

    @property
    def weighting(self) -> Weighting | None:
        """The latest weighting of the candidates, for logs."""
        return self.weigher.latest

    @property
    def reuses(self) -> bool:
        """Whether `passed` is of any use."""
        return self._passing is not None

    def passed(self, what: Draw | Tensor, features: Tensor, losses: Tensor) -> None:
        """What a training pass computed of a draw, or of the memories in some slots.

        It stands for a forward of their own at a rescoring within `Economy.reuse` draws: features
        `[n, d]` and losses `[n]` are those that scoring would find. Slots are what `Memory.add`
        returned, int64 `[n]`, -1 for examples that were not admitted.
        """
        if self._passing is None:
            return
        if isinstance(what, Draw):
            self._passing.note(what.indices, features, losses, what.versions)
        else:
            self._passing.note(what, features, losses)

    def forget_passes(self) -> None:
        """The model has become another one than passes were made by, and not by training steps."""
        if self._passing is not None:
            self._passing.forget()

    def start_task(self) -> None:
        """The next draw rescores."""
        self.schedule.ask()

    def draw(self, count: int, score: Scorer, labels: Labels | None = None) -> Draw:
        """`count` memories (fewer if the memory holds fewer and draws are distinct).

        Economical scorings are made in two parts; labels are asked for of all memories at once.
        """
        if len(self.memory) == 0:
            raise ValueError("nothing to replay: the memory is empty")
        if not self.selection.needs_scores:
            if self.watch is not None:
                self.watch(score)
            return self.draw_uniformly(count)
        pool = self.schedule.pool
        if pool is not None and pool < count and not self.replacement:
            raise ValueError(
                f"a pool of {pool} candidates cannot give {count} distinct memories: raise pool, "
                "draw fewer, or draw with replacement"
            )
        rescored = self.schedule.due(self.memory, self._dearest())
        if rescored:
            self._rescore(score, labels)
            if self.watch is not None:
                self.watch(score)
        self.schedule.count(self.memory)
        if self._passing is not None:
            self._passing.count()
        return self._draw(count, rescored=rescored)

    def redraw(self, count: int) -> Draw:
        """Another independent draw of the same step, by the weights of the last `draw`."""
        if not self.selection.needs_scores:
            return self.draw_uniformly(count)
        if self.weighting is None:
            raise ValueError("redraw() follows a draw(): nothing has been scored yet")
        return self._draw(count)

    def draw_uniformly(self, count: int) -> Draw:
        """A draw in which the selection has no say."""
        size = len(self.memory)
        if self.replacement:
            indices = torch.randint(size, (count,), generator=self._generator, device="cpu")
        else:
            indices = draw_distinct(size, count, self._generator)
        if self.drawn is not None:
            self.drawn(indices)
        versions = self.memory.versions_of(indices)
        return Draw(indices, 1.0, self.memory.take(indices), versions=versions)

    def _rescore(self, score: Scorer, labels: Labels | None) -> None:
        start = perf_counter()
        slots = self.schedule.candidates(self.memory, self._generator)
        in_use = self._in_use()
        weighting = self.weigher.weigh(
            len(slots), lambda: self._scores(slots, score, labels), in_use
        )
        drift = None if in_use is None else weighting.details["drift"]
        self.schedule.weighed(slots, self.memory, drift, weighting.cost)
        self.passes += weighting.cost
        self._moment += 1
        self._scored = self._moment
        self.seconds += perf_counter() - start

    def _in_use(self) -> Tensor | None:
        """What all memories are drawn by; None if a pool is, for the next one has others."""
        if self.weighting is None or not self.schedule.whole(self.memory):
            return None
        if len(self.memory) < len(self.weighting.weights):
            return None  # a state of before was loaded into it
        return as_probabilities(self.schedule.current(self.memory, self.weighting)[1])

    def _scores(self, slots: Tensor, score: Scorer, labels: Labels | None) -> Scores:
        if self._economy is None:
            return score(slots)
        landmarks = self._landmarks(self._economy, len(slots))
        return economical_scores(slots, score, labels, landmarks, self._generator, self._passing)

    def _landmarks(self, economy: Economy, candidates: int) -> int:
        """How many candidates get both forwards."""
        if not self.selection.needs_increments:
            return 0
        if not self.selection.needs_features:
            return candidates  # without neighbours, nobody's increment tells another's
        return min(economy.landmarks, candidates)

    def _dearest(self) -> int:
        """Passes that a rescoring takes now, at most."""
        candidates = self.schedule.width(self.memory)
        if self._economy is None:
            return WHOLE * candidates
        return candidates + self._landmarks(self._economy, candidates)

    def _draw(self, count: int, *, rescored: bool = False) -> Draw:
        weighting = self.weighting
        assert weighting is not None
        indices = self._drawn_by(weighting, count)
        if self.drawn is not None:
            self.drawn(indices)
        mass = 1.0 if self.unit_mass else weighting.mass
        cost = weighting.cost if rescored else 0
        versions = self.memory.versions_of(indices)
        fields = self.memory.take(indices)
        return Draw(indices, mass, fields, weighting.bare, rescored, cost, versions)

    def _drawn_by(self, weighting: Weighting, count: int) -> Tensor:
        distinct = not self.replacement
        if len(weighting.weights) > LARGE:
            urn = self.schedule.urn(self.memory, weighting)
            count = min(count, len(urn)) if distinct else count
            return self.schedule.drawn(
                urn.draw(count, distinct=distinct, generator=self._generator)
            )
        slots, weights = self.schedule.current(self.memory, weighting)
        scheme = Scheme.REPLACEMENT
        if distinct:
            scheme, count = Scheme.SUCCESSIVE, min(count, len(slots))
        return slots[draw(as_probabilities(weights), count, scheme, self._generator)]

    def state_dict(self) -> State:
        """Everything the next draw depends on, apart from the memory."""
        return {
            "generator": self._generator.get_state(),
            "schedule": self.schedule.state_dict(),
            "weigher": self.weigher.state_dict(),
            **self._passing_state(),
        }

    def _passing_state(self) -> State:
        return {} if self._passing is None else {"passing": self._passing.state_dict()}

    def _load_passing(self, state: State) -> None:
        if self._passing is None:
            return
        if "passing" in state:
            self._passing.load_state_dict(state["passing"])
        else:  # saved before, or without reuse
            self._passing.forget()

    @property
    def mark(self) -> int:
        """This moment, for `changes`; it ends when another state is loaded."""
        return self._moment

    def changes(self, since: int) -> State:
        """What happened after a `mark`: counters, or the whole state if memories were scored.

        What is known of training's passes is saved whole: see `Economy.reuse`.
        """
        if not isinstance(since, int):
            raise TypeError(f"since is a `mark` of this replay, got {since!r}")
        if not self._loaded <= since <= self._moment:
            raise ValueError(
                "this mark is of another replay, or older than the state that was loaded into this "
                "one: save state_dict() once more, and take a new mark with it"
            )
        if since < self._scored:
            return self.state_dict()
        return {
            "generator": self._generator.get_state(),
            "counters": self.schedule.counters(),
            **self._passing_state(),
        }

    def apply_changes(self, changes: State) -> None:
        """Go on from the state that the changes follow; the memory's changes come first."""
        if "schedule" in changes:
            self.load_state_dict(changes)
            return
        if "counters" not in changes:
            raise ValueError("these are no changes of a replay: pass what its changes() gave")
        self.schedule.load_counters(changes["counters"])
        self._load_passing(changes)
        self._generator.set_state(changes["generator"])
        self._moment += 1
        self._loaded = self._moment

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken; the memory's state comes first."""
        self.schedule.load_state_dict(state["schedule"], self.memory)
        self.weigher.load_state_dict(state["weigher"])
        self._load_passing(state)
        self._generator.set_state(state["generator"])
        self._moment += 1
        self._loaded = self._moment
