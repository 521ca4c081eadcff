"""What a user says about replay in a trainer."""

from dataclasses import dataclass

from sphere_replay.language import LanguageReplaySettings


@dataclass(frozen=True, kw_only=True)
class ReplayArguments(LanguageReplaySettings):
    """Settings of replay in a trainer; the defaults are the paper's for instruction tuning."""

    seed: int = 0
    """Seed of admission and of the draws; each has a generator of its own."""
    task_field: str | None = None
    """Column of the training set with the number of each example's task, for the logs."""

    def __post_init__(self) -> None:
        self.check_replay()
