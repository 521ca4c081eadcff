"""What a user says about replay in a trainer."""

import math
from dataclasses import dataclass

from sphere_replay.allocation import Sphere
from sphere_replay.errors import unknown
from sphere_replay.language.replay import DEFAULT_BUDGET
from sphere_replay.replay import SELECTIONS
from sphere_replay.validation import check_fraction, check_positive


@dataclass(frozen=True)
class ReplayArguments:
    """Settings of replay in a trainer; the defaults are the paper's for instruction tuning."""

    capacity: int = 3000
    """Examples the memory holds."""
    pool: int = 512
    """Candidates scored at a refresh; the whole memory if it holds fewer."""
    refresh_every: int = 4
    """Choose and score new candidates at every n-th update."""
    batch: int = 4
    """Examples replayed in an update, over all processes."""
    select: str = "sphere"
    """Name of the selection, such as sphere, uniform, loss, mir, mir-top or one of the controls."""
    alpha: float = 0.5
    """Share of the risk-driven weights in the blend with uniform replay."""
    top: int = 16
    """How many candidates `mir-top` keeps."""
    virtual_lr: float = 1e-2
    """Length of the virtual SGD step that asks which memories the next update would hurt."""
    strength: float = 1.0
    """λ: the objective is stream loss + λ · mean replay loss."""
    unit_mass: bool = True
    """Replay at full strength whatever the mass s_w; False multiplies the replay loss by it."""
    seed: int = 0
    """Seed of admission and of the draws; each has a stream of its own."""
    task_field: str | None = None
    """Column of the training set with the number of each example's task, for the logs."""
    token_budget: int = DEFAULT_BUDGET
    """Padded tokens in a scored batch; lower it if scoring runs out of memory."""

    def __post_init__(self) -> None:
        for name in ("capacity", "pool", "refresh_every", "batch", "top", "token_budget"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("capacity", "pool", *(["top"] if self.select == "mir-top" else [])):
            limit = getattr(self, name)
            if self.batch > limit:
                raise ValueError(
                    f"batch={self.batch} memories cannot be drawn from {name}={limit}: replay "
                    f"fewer, or raise {name}"
                )
        if self.select not in SELECTIONS:
            raise ValueError(unknown("selection", self.select, SELECTIONS))
        check_fraction(alpha=self.alpha)
        check_positive(virtual_lr=self.virtual_lr)
        if not (self.strength >= 0 and math.isfinite(self.strength)):
            raise ValueError(f"strength must be finite and not negative, got {self.strength}")

    @property
    def recipe(self) -> Sphere:
        """The recipe of the selections built on SPHERE."""
        return Sphere.instruct(alpha=self.alpha)
