"""Selections: small values that turn the scores of memories into replay weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from sphere_replay.allocation import Allocation, CalibratedScales, Control, Sphere, allocate
from sphere_replay.allocation.certificate import warn_if_poor
from sphere_replay.config import from_options
from sphere_replay.errors import ConfigError, unknown
from sphere_replay.numeric import (
    accumulation_dtype,
    as_probabilities,
    effective_sample_size,
)
from sphere_replay.replay.landmarks import carry
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
    scores: Scores | None = field(default=None, repr=False, compare=False)
    """What was weighed, if anything was scored; not part of any state."""

    @cached_property
    def bare(self) -> "Weighting":
        """The same without what it was made of."""
        return replace(self, allocation=None, scores=None)

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
    def needs_increments(self) -> bool:
        """Whether it takes a virtual step to score; one forward does otherwise."""
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


MEMBERS = ("needs_scores", "needs_features", "needs_increments", "every", "weigh")
"""What makes a selection of an object."""


@dataclass(frozen=True)
class Uniform:
    """Experience replay: every memory alike."""

    needs_scores = False
    needs_features = False
    needs_increments = False
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
    needs_increments = False
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
    needs_increments = True
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
    needs_increments = True
    every = 1

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        """1/top for the largest increments, whatever their sign; 0 for the others."""
        chosen = scores.increments.topk(min(self.top, len(scores.increments))).indices
        return _proportional(torch.zeros_like(scores.increments).index_fill(0, chosen, 1.0))


_WITHOUT_FLOOR = (Control.NO_FLOOR, Control.MATCHED_MIR)
"""Controls that follow the risk whatever alpha is."""


@dataclass(frozen=True)
class SphereSelection:
    """SPHERE, or one of its controls, by a recipe.

    With `unit_mass` the weights are p = w̄ / s_w: replay is as strong as without SPHERE. Where only
    landmarks have increments, the kernel carries these to the others first.
    """

    recipe: Sphere
    unit_mass: bool = False
    every: int = 4
    needs_scores = True
    needs_features = True

    @property
    def needs_increments(self) -> bool:
        """Whether the risk has a share in the weights; labels are backed without."""
        return self.recipe.alpha > 0 or self.recipe.control in _WITHOUT_FLOOR

    def weigh(
        self, scores: Scores, running_scale: float | None, generator: torch.Generator
    ) -> Weighting:
        """w̄ of `allocate`."""
        if scores.features is None:
            raise ValueError("SPHERE asks the neighbours: score memories with their features")
        if self.recipe.agreement > 0 and scores.labels is None:
            raise ConfigError(
                "the recipe lets neighbours vote on labels, and these memories have none: soft "
                "targets are no class numbers, and answers of free text, most of which occur once, "
                "are no labels. Take select='sphere', or a recipe with agreement=0"
            )
        carried = carry(scores, scores.features, self.recipe)
        allocation = allocate(
            carried.increments,
            carried.features,
            carried.recipe,
            labels=scores.labels if self.recipe.agreement > 0 else None,
            running_scale=running_scale,
            grouping=scores.grouping,
            generator=generator,
        )
        if not isinstance(carried.features, Tensor):  # else allocate has told
            warn_if_poor(allocation)
        details = {
            "temperature": allocation.temperature,
            "largest_support": float(allocation.support.max()),
            "eps_s": allocation.eps_s,
            "eps_t": allocation.eps_t,
        }
        if carried.trust is not None:
            details["landmark_neighbors"] = carried.trust
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


def _controlled(control: Control | None) -> Callable[..., Selection]:
    def make(recipe: Sphere, top: int, **options: Any) -> Selection:
        for name in options:
            if name not in RECIPE_OPTIONS:
                raise ValueError(unknown("option", name, RECIPE_OPTIONS))
        return SphereSelection(replace(recipe, control=control, **options))

    return make


def _calibrated(
    recipe: Sphere, top: int, *, unit_mass: bool = True, **options: Any
) -> SphereSelection:
    """With scales of its own: of the recipe it takes the blend alone."""
    calibrated = selection_by(Sphere.calibrated(**{"alpha": recipe.alpha, **options}))
    return replace(calibrated, unit_mass=bool(unit_mass))


def selection_by(recipe: Sphere) -> SphereSelection:
    """A recipe as a selection, with the strength and interval that it was chosen with."""
    if isinstance(recipe.scales, CalibratedScales):
        return SphereSelection(recipe, unit_mass=True, every=CALIBRATED_EVERY)
    return SphereSelection(recipe)


def asks_labels(select: object) -> bool:
    """Whether neighbours vote on labels in a selection, in one of this name, or in a recipe."""
    if isinstance(select, str):
        return select == "sphere-calibrated"
    recipe = getattr(select, "recipe", select)
    return bool(getattr(recipe, "agreement", 0.0) > 0)


CALIBRATED_EVERY = 16
"""Draws between rescorings of the calibrated selection: what backs a label changes slowly."""

RECIPE_OPTIONS = ("agreement", "votes", "strength", "leave_one_out")
"""Of a recipe, beside what configurations have settings for."""

SELECTIONS: dict[str, type[Selection] | Callable[..., Selection]] = {
    "uniform": Uniform,
    "loss": LossProportional,
    "mir": MirProportional,
    "mir-top": lambda recipe, top: MirTop(top),
    "sphere": _controlled(None),
    "sphere-identity": _controlled(Control.IDENTITY),
    "sphere-consensus": _controlled(Control.CONSENSUS),
    "sphere-no-transport": _controlled(Control.NO_TRANSPORT),
    "sphere-permuted": _controlled(Control.PERMUTED),
    "mir-matched": _controlled(Control.MATCHED_MIR),
    "sphere-no-floor": _controlled(Control.NO_FLOOR),
    "sphere-calibrated": _calibrated,
}
"""Names on the command line. An entry is a frozen dataclass whose fields are the selection's own
options, or a function of a recipe, of how many are to be ranked, and of options by name."""

UNLABELLED = [name for name in SELECTIONS if name != "sphere-calibrated"]
"""Those for memories without class numbers, such as groups of programs."""


def selection_named(
    name: str,
    recipe: Sphere,
    top: int = MirTop.top,
    options: Mapping[str, Any] | None = None,
) -> Selection:
    """The selection of a name, on the given recipe, with its own options where they are said."""
    if name not in SELECTIONS:
        raise ValueError(unknown("selection", name, SELECTIONS))
    make, options = SELECTIONS[name], options or {}
    return from_options(make, options) if isinstance(make, type) else make(recipe, top, **options)
