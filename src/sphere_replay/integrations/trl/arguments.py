"""What a user says about replay in GRPO, and the paper's settings of GRPO itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sphere_replay.errors import unknown
from sphere_replay.replay import SELECTIONS
from sphere_replay.validation import check_fraction, check_positive

NO_REPLAY = "none"
OBJECTIVE: Mapping[str, Any] = {
    "num_train_epochs": 1,
    "num_iterations": 1,
    "shuffle_dataset": False,
    "loss_type": "dr_grpo",
    "scale_rewards": "none",
    "importance_sampling_level": "token",
    "beta": 0.0,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 2.0,
    "lr_scheduler_type": "constant",
}
"""The paper's form of GRPO, whatever its sizes and rates."""


@dataclass(frozen=True)
class GroupReplayArguments:
    """Settings of replay in GRPO; the defaults are the paper's for code generation."""

    capacity: int = 480
    """Problems the memory holds."""
    candidates: int = 48
    """Problems of the memory that are sampled anew in an update; all if it holds fewer."""
    batch: int = 8
    """Groups replayed in an update, over all processes, with replacement."""
    select: str = "sphere"
    """Name of the selection: none, uniform, mir, sphere, or one of the controls."""
    alpha: float = 0.5
    """Share of the risk-driven weights in the blend with uniform replay."""
    virtual_lr: float | None = None
    """Length of the virtual optimizer step; the optimizer's current learning rate unless given."""
    strength: float = 1.0
    """λ: the objective is stream loss + λ · mean replay loss."""
    favor: float = 4.0
    """A problem whose latest group was mixed is so many times as likely to be the next candidate as
    one whose was not. The paper favors such problems without saying how much."""
    seed: int = 0
    """Seed of admission, candidates, their programs and the draws; each has its own stream."""
    id_field: str = "id"
    """Column that names each row's problem; rows with the same name are one problem."""

    def __post_init__(self) -> None:
        for name in ("capacity", "candidates", "batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.candidates > self.capacity:
            raise ValueError(
                f"candidates={self.candidates} distinct problems cannot come from a memory of "
                f"capacity={self.capacity}: ask for fewer candidates, or raise capacity"
            )
        if self.select != NO_REPLAY and self.select not in SELECTIONS:
            raise ValueError(unknown("selection", self.select, (NO_REPLAY, *SELECTIONS)))
        check_fraction(alpha=self.alpha)
        if self.virtual_lr is not None:
            check_positive(virtual_lr=self.virtual_lr)
        if not (self.strength >= 0 and math.isfinite(self.strength)):
            raise ValueError(f"strength must be finite and not negative, got {self.strength}")
        if not 1 <= self.favor < math.inf:
            raise ValueError(
                f"favor must be finite and at least 1, got {self.favor}: 1 treats all problems "
                "alike, more favors those whose latest group was mixed"
            )
        if not self.id_field:
            raise ValueError("id_field must name the column with each row's problem, got ''")


def paper_settings(
    *,
    problems: int = 8,
    generations: int = 8,
    completion_length: int = 512,
    per_device: int = 8,
    processes: int = 1,
) -> dict[str, Any]:
    """Keyword arguments of `GRPOConfig` for the paper's code generation.

        GRPOConfig("out", **paper_settings(per_device=16), use_vllm=True)

    Advantages centered but not scaled, a clipped token surrogate over a fixed denominator, no KL
    term, the sampler's probabilities corrected by min(2, exp(log p0 - log q)), AdamW at a constant
    1e-4, and the training set in the order it comes in.

    Args:
        problems: Current problems in an update.
        generations: Programs sampled for each.
        completion_length: Longest program in tokens, and the loss's denominator.
        per_device: Programs in a micro-batch of one process; the rest is accumulated.
        processes: How many processes train together.
    """
    total, together = problems * generations, per_device * processes
    if total % together:
        raise ValueError(
            f"{problems} problems x {generations} programs do not divide into micro-batches of "
            f"{per_device} on {processes} process(es): choose per_device so that {total} is a "
            f"multiple of {together}"
        )
    return {
        "num_generations": generations,
        "max_completion_length": completion_length,
        "per_device_train_batch_size": per_device,
        "gradient_accumulation_steps": total // together,
        "epsilon": 0.2,
        "learning_rate": 1e-4,
        **OBJECTIVE,
    }
