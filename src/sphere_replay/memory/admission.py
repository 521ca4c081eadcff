"""What an admission policy is: it says which slot, if any, each offered row goes to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from sphere_replay.storage.trees import State


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a network says of n candidates."""

    losses: Tensor
    """`[n]`, of the stored label."""
    features: Tensor
    """`[n, d]`, before the classifier."""
    head: Tensor
    """`[C, d]`: the classifier's weights, which tell the dimensions that matter to a class."""
    diversity: float
    """In [0, 1], the share of similarity: score = (1 - share) z(loss) + share z(similarity)."""


@dataclass(frozen=True)
class Insight:
    """What only the learner knows of the rows that it offers, for policies that ask."""

    judge: Callable[[Mapping[str, Tensor]], Judgement] | None = None
    """Judges candidates, stored and offered ones, `[n, ...]` per field of the memory."""
    first_class: int = 0
    """The first class of the current task."""


@dataclass(frozen=True, eq=False)
class Offer:
    """A batch of n rows in stream order, and the state of the memory they are offered to."""

    fields: Mapping[str, Tensor]
    """The rows, `[n, ...]` per field; already checked against the memory's fields."""
    uniforms: Tensor
    """float64 `[n]` in [0, 1), one per row and no more, so that a row's draw depends only on the
    generator's seed and the row's stream position; empty if the policy does not draw."""
    count: int
    """n, at least 1."""
    seen: int
    """Rows offered before this batch: the stream position of its first row."""
    filled: int
    """Filled slots: 0, ..., filled - 1."""
    capacity: int
    """K."""
    stored: Mapping[str, Tensor] = field(default_factory=dict)
    """What the filled slots hold now, `[filled, ...]` per field; to be read only."""
    insight: Insight = field(default_factory=Insight)


@runtime_checkable
class Admission(Protocol):
    """Decides what a full memory keeps. Each memory needs a policy object of its own."""

    name: ClassVar[str]
    """Written into saved memories, which load only into a memory with the same policy."""
    draws: ClassVar[bool]
    """Whether `place` uses `Offer.uniforms`; the memory then needs a generator."""

    def place(self, offer: Offer) -> Tensor:
        """The slot of each row, int64 `[n]` on the CPU, -1 for rows that are not kept.

        Rows are decided one after the other: a slot may be given twice, and the later row stays.
        Empty slots are filled from the lowest. Invalid fields must raise before any state changes.
        """
        ...

    def state_dict(self) -> State:
        """Settings and counters, under any key but `name`; empty if there are none."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state; an error, before any change, if it is not this policy's."""
        ...


@runtime_checkable
class Repeats(Protocol):
    """What a policy with a large state has besides: it can be told what others decided upon.

    Changes of a memory hold the whole state of any other policy.
    """

    def offers(self, rows: int) -> State | None:
        """All that decides about the last so many rows offered; None if it is not known so far."""
        ...

    def repeat(self, offers: State, *, rows: int, capacity: int) -> None:
        """Decide about these rows again; an error, before any change, if they are damaged."""
        ...
