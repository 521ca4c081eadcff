"""What a user says about replay in GRPO, and the paper's settings of GRPO itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sphere_replay.errors import ConfigError
from sphere_replay.replay import UNLABELLED, ReplaySettings

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


@dataclass(frozen=True, kw_only=True)
class GroupReplayArguments(ReplaySettings):
    """Settings of replay in GRPO; the defaults are the paper's for code generation.

    `select` may be `none`: nothing is replayed.
    """

    capacity: int = 480
    """Problems the memory holds."""
    pool: int | None = 48
    """Problems of the memory that are sampled anew in an update; all if it holds fewer."""
    replay_batch: int = 8
    """Groups replayed in an update, over all processes, with replacement."""
    strength: float = 1.0
    """λ: the objective is stream loss + λ · mean replay loss."""
    favor: float = 4.0
    """A problem whose latest group was mixed is so many times as likely to be the next candidate as
    one whose was not. The paper favors such problems without saying how much."""
    replay_seed: int = 0
    """Seed of admission, candidates, their programs and the draws; each has its own generator."""
    id_field: str = "id"
    """Column that names each row's problem; rows with the same name are one problem."""
    allow_plain_checkpoint: bool = False
    """Resume from a checkpoint that was saved without replay, with an empty memory."""

    def __post_init__(self) -> None:
        self.check_replay((NO_REPLAY, *UNLABELLED), distinct=False)
        if self.pool is not None and self.pool > self.capacity:
            raise ConfigError(
                f"a pool of {self.pool} distinct problems cannot come from a memory of "
                f"capacity={self.capacity}: lower pool, or raise capacity"
            )
        if not 0 <= self.strength < math.inf:
            raise ConfigError(f"strength must be finite and not negative, got {self.strength}")
        if not 1 <= self.favor < math.inf:
            raise ConfigError(
                f"favor must be finite and at least 1, got {self.favor}: 1 treats all problems "
                "alike, more favors those whose latest group was mixed"
            )
        if not self.id_field:
            raise ConfigError("id_field must name the column with each row's problem, got ''")


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
