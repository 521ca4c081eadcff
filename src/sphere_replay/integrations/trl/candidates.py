"""New programs for remembered problems, each problem's group on one process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sphere_replay.integrations.trl.groups import Group, sample_groups
from sphere_replay.integrations.trl.problems import Problems
from sphere_replay.language import Ranks


@dataclass(frozen=True, eq=False)
class Candidates:
    """Problems sampled in an update; n of them, spread over the processes."""

    problems: Tensor
    """int64 `[n]`."""
    mixed: Tensor
    """bool `[n]`: programs with different rewards."""
    empty: Tensor
    """bool `[n]`: no token counts."""
    reward: float
    """Mean over everything that was sampled."""
    own: Mapping[int, Group]
    """Groups of this process, by their place in `problems`; the others hold the rest."""
    spare: Group
    """Stands in where this process has nothing to do but others wait for it."""


def sample_candidates(trainer: Any, ranks: Ranks, problems: Problems, chosen: Tensor) -> Candidates:
    """A group for each of the chosen problems `[n]`; all but the groups is known everywhere."""
    places = ranks.share(torch.arange(len(chosen))).tolist()
    # TRL gathers from all processes, so each must sample as many: some sample one for company.
    asked = places + [0] * (-(-len(chosen) // ranks.world) - len(places))
    rows = [trainer.train_dataset[problems.rows[int(chosen[place])]] for place in asked]
    groups, rewards = sample_groups(trainer, rows)
    own = dict(zip(places, groups, strict=False))

    def everywhere(values: list[bool]) -> Tensor:
        return ranks.spread(torch.tensor(values, dtype=torch.float32), places, len(chosen)) > 0

    return Candidates(
        problems=chosen,
        mixed=everywhere([group.mixed for group in own.values()]),
        empty=everywhere([group.empty for group in own.values()]),
        reward=sum(rewards) / len(rewards),
        own=own,
        spare=groups[0],
    )
