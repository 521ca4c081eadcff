"""Weighing: a selection, and what it remembers from one weighing to the next."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from sphere_replay.errors import ConfigError
from sphere_replay.geometry import Kept, kept_of
from sphere_replay.numeric import accumulation_dtype, as_probabilities, percentile
from sphere_replay.replay.selections import Selection, Weighting
from sphere_replay.scoring import Scores
from sphere_replay.storage.trees import State

_MISSED = 1e-3
"""By which a sum may miss its mass: more than any rounding."""


class Weigher:
    """Weighs candidates by a selection, and hands on what the next weighing is told."""

    def __init__(self, selection: Selection, generator: torch.Generator) -> None:
        self.selection = selection
        self.latest: Weighting | None = None
        """What the last weighing gave, for logs."""
        self._generator = generator
        self._running_scale: float | None = None
        self._grouping: Kept | None = None

    def weigh(
        self, count: int, score: Callable[[], Scores], in_use: Tensor | None = None
    ) -> Weighting:
        """Weights of that many candidates; they are scored only if the selection needs it.

        `in_use` `[count]` are the probabilities that these are to replace.
        """
        if not self.selection.needs_scores:
            precision = accumulation_dtype(torch.device("cpu"))
            self.latest = Weighting(torch.full((count,), 1 / count, dtype=precision))
            return self.latest
        if self.latest is not None:  # a large geometry would lie beside the next one
            self.latest = self.latest.bare
        scores = replace(score(), grouping=self._grouping)
        weighting = self.selection.weigh(scores, self._running_scale, self._generator)
        _check(weighting, count, type(self.selection).__name__)
        details = dict(weighting.details)
        if len(known := scores.known_increments):
            details |= increment_quantiles(known)
        if in_use is not None:
            details["drift"] = drift(in_use, as_probabilities(weighting.weights.to(in_use)))
        if scores.reused is not None:
            details["reused"] = scores.reused
        self._running_scale = weighting.running_scale
        allocation = weighting.allocation
        self._grouping = None if allocation is None else allocation.grouping
        cost = round(scores.passes * len(scores))
        self.latest = replace(weighting, details=details, cost=cost, scores=scores)
        return self.latest

    def forget(self) -> None:
        """Begin afresh: what was weighed before has nothing to do with what comes."""
        self.latest = self._running_scale = self._grouping = None

    def state_dict(self) -> State:
        """Everything the next weighing depends on, and the latest."""
        latest, grouping = self.latest, self._grouping
        return {
            "running_scale": self._running_scale,
            "weights": None if latest is None else latest.weights,
            "mass": None if latest is None else latest.mass,
            "details": {} if latest is None else dict(latest.details),
            "grouping": None if grouping is None else grouping._asdict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self._running_scale, self.latest = state["running_scale"], None
        grouping = state.get("grouping")  # states of before had none
        self._grouping = None if grouping is None else kept_of(grouping)
        if state["weights"] is not None:
            self.latest = Weighting(
                state["weights"], state["mass"], self._running_scale, state["details"]
            )


def _check(weighting: Weighting, count: int, name: str) -> None:
    """Refuse what no draw can be made by: a selection may be somebody's own."""
    if not isinstance(weighting, Weighting):
        raise ConfigError(
            f"selection {name}: weigh() must return a Weighting, got {type(weighting).__name__}"
        )
    weights, mass = weighting.weights, weighting.mass
    if weights.shape != (count,):
        raise ConfigError(
            f"selection {name}: one weight per scored memory is expected, [{count}], "
            f"got {list(weights.shape)}"
        )
    total, least = float(weights.sum(dtype=accumulation_dtype(weights.device))), weights.min()
    if not (math.isfinite(total) and least >= 0):
        raise ConfigError(f"selection {name}: weights must be finite and not negative")
    if not math.isclose(total, mass, rel_tol=_MISSED, abs_tol=_MISSED):
        raise ConfigError(
            f"selection {name}: weights must sum to their mass, which memories that were not "
            f"scored have their share of; the sum is {total:g}, the mass {mass:g}"
        )


def drift(used: Tensor, fresh: Tensor) -> float:
    """How much of what weights say is news, from 0 to 1: who is drawn otherwise, in [m].

    The total variation between the probabilities in use and the fresh ones, over that between these
    and uniform ones, if that is larger.
    """
    moved = float((fresh - used).abs().sum())
    said = float((fresh - 1 / len(fresh)).abs().sum())
    return moved / max(moved, said) if moved > 0 else 0.0


def increment_quantiles(increments: Tensor) -> dict[str, float]:
    """Low, middle and high increments `[m]`, for the log."""
    return {f"increment_p{100 * q:g}": percentile(increments, q) for q in (0.05, 0.5, 0.95)}
