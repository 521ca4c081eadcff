"""Selections: small values that turn the scores of memories into replay weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from sphere_replay.allocation import Allocation, Control, Sphere, allocate
from sphere_replay.errors import unknown
from sphere_replay.numeric import (
    accumulation_dtype,
    as_probabilities,
    effective_sample_size,
)
from sphere_replay.scoring import Scores


@dataclass(frozen=True)
class Weighting:
    """Weights of the scored memories `[m]`, their sum, and what the next rescoring is told."""

    weights: Tensor
    mass: float = 1.0
    running_scale: float | None = None
    details: Mapping[str, float] = field(default_factory=dict)
    """What a log should know about how the weights came about."""
    cost: int = 0
    """Examples passed forward to score the memories."""
    allocation: Allocation | None = field(default=None, repr=False, compare=False)
    """Where the weights come from, if from one; not part of any state."""

    @cached_property
    def effective_sample_size(self) -> float:
        """ESS of the normalised weights: how many memories share the replay."""
        weights = self.weights.to(accumulation_dtype(self.weights.device))
        return effective_sample_size(as_probabilities(weights))


class Selection(Protocol):
    """Decides how much each memory is replayed, and says what it has to know for that."""

    @property
    def needs_scores(self) -> bool:
        """Whether memories must be scored at all."""
        ...

    @property
    def needs_features(self) -> bool:
        """Whether scores without features are of no use."""
        ...

    @property
    def every(self) -> int:
        """Draws between rescorings, unless somebody says otherwise."""
        ...

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        """Weights `[m]` of the scored memories."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Experience replay: every memory alike."""

    needs_scores = False
    needs_features = False
    every = 1

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        """1/m each."""
        return _proportional(torch.zeros_like(scores.losses))


@dataclass(frozen=True)
class LossProportional:
    """p proportional to the current loss."""

    needs_scores = True
    needs_features = False
    every = 4

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        """Losses over their sum; uniform if every loss is zero."""
        return _proportional(scores.losses)


@dataclass(frozen=True)
class MirProportional:
    """p proportional to the interference [δ]_+."""

    needs_scores = True
    needs_features = False
    every = 1

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        """[δ]_+ / Σ [δ]_+; uniform if no loss would rise."""
        return _proportional(scores.increments)


@dataclass(frozen=True)
class MirTop:
    """The `top` largest increments, uniformly among them (the original MIR if top = batch)."""

    top: int = 16
    needs_scores = True
    needs_features = False
    every = 1

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        """1/top for the largest increments, whatever their sign; 0 for the others."""
        chosen = scores.increments.topk(min(self.top, len(scores.increments))).indices
        return _proportional(torch.zeros_like(scores.increments).index_fill(0, chosen, 1.0))


@dataclass(frozen=True)
class SphereSelection:
    """SPHERE, or one of its controls, by a recipe.

    With `unit_mass` the weights are p = w̄ / s_w: replay is as strong as without SPHERE.
    """

    recipe: Sphere
    unit_mass: bool = False
    needs_scores = True
    needs_features = True
    every = 4

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        """w̄ of `allocate`."""
        if scores.features is None:
            raise ValueError("SPHERE asks the neighbours: score memories with their features")
        allocation = allocate(
            scores.increments,
            scores.features,
            self.recipe,
            labels=scores.labels if self.recipe.agreement > 0 else None,
            running_scale=running_scale,
            generator=generator,
        )
        details = {
            "temperature": allocation.temperature,
            "largest_support": float(allocation.support.max()),
            "eps_s": allocation.eps_s,
            "eps_t": allocation.eps_t,
        }
        if allocation.backing is not None:
            details |= {
                "backing": float(allocation.backing.mean()),
                "label_noise": allocation.label_noise or 0.0,
                "agreement": allocation.agreement,
            }
        if allocation.error is not None:
            details["error"] = allocation.error.total_variation
        if self.unit_mass:
            details["mass"] = allocation.mass
        return Weighting(
            allocation.probabilities if self.unit_mass else allocation.weights,
            1.0 if self.unit_mass else allocation.mass,
            allocation.running_scale,
            details,
            allocation=allocation,
        )


def _proportional(values: Tensor) -> Weighting:
    positive = values.clamp(min=0).to(accumulation_dtype(values.device))
    largest = positive.max()
    if largest == 0:
        return Weighting(torch.full_like(positive, 1 / len(positive)))
    positive = positive / largest
    return Weighting(positive / positive.sum())


def _controlled(control: Control | None) -> Callable[[Sphere, int], Selection]:
    return lambda recipe, top: SphereSelection(replace(recipe, control=control))


SELECTIONS: dict[str, Callable[[Sphere, int], Selection]] = {
    "uniform": lambda recipe, top: Uniform(),
    "loss": lambda recipe, top: LossProportional(),
    "mir": lambda recipe, top: MirProportional(),
    "mir-top": lambda recipe, top: MirTop(top),
    "sphere": _controlled(None),
    "sphere-identity": _controlled(Control.IDENTITY),
    "sphere-consensus": _controlled(Control.CONSENSUS),
    "sphere-no-transport": _controlled(Control.NO_TRANSPORT),
    "sphere-permuted": _controlled(Control.PERMUTED),
    "mir-matched": _controlled(Control.MATCHED_MIR),
    "sphere-no-floor": _controlled(Control.NO_FLOOR),
    "sphere-calibrated": lambda recipe, top: SphereSelection(Sphere.calibrated(), unit_mass=True),
}
"""Names on the command line. A recipe serves those built on it, `top` those that rank."""

UNLABELLED = tuple(name for name in SELECTIONS if name != "sphere-calibrated")
"""Those for memories without class numbers: token sequences, groups of programs."""


def selection_named(name: str, recipe: Sphere, top: int = MirTop.top) -> Selection:
    """The selection of a name, on the given recipe."""
    if name not in SELECTIONS:
        raise ValueError(unknown("selection", name, SELECTIONS))
    return SELECTIONS[name](recipe, top)
