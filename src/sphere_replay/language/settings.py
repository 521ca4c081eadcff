"""Settings of replay for language models; the defaults are the paper's for instruction tuning."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sphere_replay.errors import ConfigError
from sphere_replay.replay import SELECTIONS, ScheduledSettings


@dataclass(frozen=True, kw_only=True)
class LanguageReplaySettings(ScheduledSettings):
    """What a run's configuration and a trainer's arguments both say."""

    capacity: int = 3000
    """Examples the memory holds."""
    replay_batch: int = 4
    """Examples replayed in an update, over all processes."""
    pool: int | None = 512
    """Candidates scored at a rescoring; None, or fewer memories: all."""
    top: int | None = 16
    """How many candidates `mir-top` keeps; None: as many as are replayed."""
    unit_mass: bool = True
    """Replay at full strength whatever the mass s_w; False multiplies the replay loss by it."""
    virtual_lr: float | None = 1e-2
    """Length of the virtual SGD step that asks which memories the next update would hurt."""
    strength: float = 1.0
    """λ: the objective is stream loss + λ · mean replay loss."""
    token_budget: int = 4096
    """Padded tokens in a scored batch; lower it if scoring runs out of memory."""

    def check_replay(
        self, selections: Iterable[str] = SELECTIONS, *, distinct: bool = True
    ) -> None:
        """Refuse values that replay cannot work with."""
        super().check_replay(selections, distinct=distinct)
        if self.virtual_lr is None:
            raise ConfigError("virtual_lr must be a number: the virtual step is one of SGD")
        if not 0 <= self.strength < math.inf:
            raise ConfigError(f"strength must be finite and not negative, got {self.strength}")
        if self.token_budget < 1:
            raise ConfigError(f"token_budget must be at least 1, got {self.token_budget}")
