"""The controller: when memories are rescored, which are candidates, and what is drawn.

Between rescorings weights belong to slot *versions*: a slot that was overwritten since, or is new,
has the uniform weight until it is scored.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sphere_replay.allocation.sampling import Scheme, draw
from sphere_replay.memory import Memory
from sphere_replay.numeric import as_probabilities
from sphere_replay.replay.selections import Selection, Uniform, Weighting, increment_quantiles
from sphere_replay.scoring import Scores

State = dict[str, Any]
"""A tree of tensors, numbers, strings and None: what checkpoints hold."""

Scorer = Callable[[Tensor], Scores]
"""Scores the memories in the given slots `[m]`."""


@dataclass(frozen=True)
class Draw:
    """Memories to replay now: their slots, their fields, and the factor of their mean loss."""

    indices: Tensor
    scale: float
    fields: dict[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    def __len__(self) -> int:
        return len(self.indices)


class Replay:
    """Draws memories by a selection.

    Args:
        memory: What there is to replay.
        selection: How memories are weighed.
        generator: The only source of candidates, draws and shuffles.
        every: Rescore at every n-th draw, and at the first of each task.
        pool: Score and draw from this many memories, chosen uniformly at each rescoring; None
            scores the whole memory.
        replacement: Draw with replacement.
        unit_mass: Ignore the mass s_w: the drawn mean loss counts fully, whatever the weights.
    """

    def __init__(
        self,
        memory: Memory,
        selection: Selection | None = None,
        *,
        generator: torch.Generator,
        every: int = 1,
        pool: int | None = None,
        replacement: bool = False,
        unit_mass: bool = False,
    ) -> None:
        if every < 1:
            raise ValueError(f"every counts draws between rescorings: at least 1, got {every}")
        if pool is not None and pool < 1:
            raise ValueError(f"a pool has at least one candidate, got {pool}")
        self.memory = memory
        self.selection: Selection = selection or Uniform()
        self.every = every
        self.pool = pool
        self.replacement = replacement
        self.unit_mass = unit_mass
        self._generator = generator
        self._draws_since = 0
        self._due = True
        self._running_scale: float | None = None
        self._slots = torch.empty(0, dtype=torch.int64)
        self._versions = torch.empty(0, dtype=torch.int64)
        self.weighting: Weighting | None = None
        """The latest weighting of the candidates, for logs."""

    def start_task(self) -> None:
        """The next draw rescores."""
        self._due = True

    def draw(self, count: int, score: Scorer) -> Draw:
        """`count` memories (fewer if the memory holds fewer and draws are distinct)."""
        if len(self.memory) == 0:
            raise ValueError("nothing to replay: the memory is empty")
        if not self.selection.needs_scores:
            return self.draw_uniformly(count)
        if self._due or self._draws_since >= self.every:
            self._rescore(score)
        self._draws_since += 1
        return self._draw(count, *self._current())

    def redraw(self, count: int) -> Draw:
        """Another independent draw of the same step, by the weights of the last `draw`."""
        if not self.selection.needs_scores:
            return self.draw_uniformly(count)
        if self.weighting is None:
            raise ValueError("redraw() follows a draw(): nothing has been scored yet")
        return self._draw(count, *self._current())

    def draw_uniformly(self, count: int) -> Draw:
        """A draw in which the selection has no say."""
        size = len(self.memory)
        if self.replacement:
            indices = torch.randint(size, (count,), generator=self._generator)
        else:
            indices = torch.randperm(size, generator=self._generator)[:count]
        return Draw(indices, 1.0, self.memory.take(indices))

    def _rescore(self, score: Scorer) -> None:
        size = len(self.memory)
        if self.pool is None or self.pool >= size:
            self._slots = torch.arange(size)
        else:
            self._slots = torch.randperm(size, generator=self._generator)[: self.pool]
        self._versions = self.memory.versions.cpu()[self._slots]
        scores = score(self._slots)
        weighting = self.selection.weigh(scores, self._running_scale, self._generator)
        details = {**weighting.details, **increment_quantiles(scores.increments)}
        self.weighting = replace(weighting, details=details)
        self._running_scale = self.weighting.running_scale
        self._draws_since = 0
        self._due = False

    def _current(self) -> tuple[Tensor, Tensor]:
        """Candidate slots and their weights now; the whole memory is as large as it has become."""
        assert self.weighting is not None
        weights = self.weighting.weights.cpu()
        uniform = self.weighting.mass / len(weights)
        versions = self.memory.versions.cpu()
        stale = versions[self._slots] != self._versions
        weights = weights.masked_fill(stale, uniform)
        added = len(versions) - len(weights)
        if self.pool is not None and len(versions) > self.pool:
            return self._slots, weights
        return torch.arange(len(versions)), torch.cat(
            [weights, weights.new_full((added,), uniform)]
        )

    def _draw(self, count: int, slots: Tensor, weights: Tensor) -> Draw:
        assert self.weighting is not None
        scheme = Scheme.REPLACEMENT
        if not self.replacement:
            scheme, count = Scheme.SUCCESSIVE, min(count, len(slots))
        indices = slots[draw(as_probabilities(weights), count, scheme, self._generator)]
        mass = 1.0 if self.unit_mass else self.weighting.mass
        return Draw(indices, mass, self.memory.take(indices))

    def state_dict(self) -> State:
        """Everything the next draw depends on, apart from the memory."""
        return {
            "generator": self._generator.get_state(),
            "draws_since": self._draws_since,
            "due": self._due,
            "running_scale": self._running_scale,
            "slots": self._slots,
            "versions": self._versions,
            "weights": None if self.weighting is None else self.weighting.weights,
            "mass": None if self.weighting is None else self.weighting.mass,
            "details": {} if self.weighting is None else dict(self.weighting.details),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self._generator.set_state(state["generator"])
        self._draws_since = state["draws_since"]
        self._due = state["due"]
        self._running_scale = state["running_scale"]
        self._slots, self._versions = state["slots"], state["versions"]
        self.weighting = None
        if state["weights"] is not None:
            self.weighting = Weighting(
                state["weights"], state["mass"], self._running_scale, state["details"]
            )
