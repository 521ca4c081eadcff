"""Replay over the updates of trainers: what a user says about it, and the memory it works on."""

from dataclasses import dataclass

from torch import nn

from sphere_replay.language import (
    LanguageReplay,
    LanguageReplaySettings,
    TokenMemory,
    is_encoder_decoder,
    longest_input,
)
from sphere_replay.randomness import generator_for


@dataclass(frozen=True, kw_only=True)
class ReplayArguments(LanguageReplaySettings):
    """Settings of replay in a trainer; the defaults are the paper's for instruction tuning."""

    seed: int = 0
    """Seed of admission and of the draws; each has a generator of its own."""
    task_field: str | None = None
    """Column of the training set with the number of each example's task, for the logs."""

    def __post_init__(self) -> None:
        self.check_replay()


class ReplaySession(LanguageReplay):
    """The memory of one or several trainings in sequence, and their replay.

    Hand the session of one trainer to the next, and the next one replays what the first has seen:

        second = SphereTrainer(..., replay=first.replay)

    Args:
        arguments: The settings.
        model: Tells what its batches look like.
        pad_token_id: Fills rows up; the model's own, or 0, unless given.
    """

    def __init__(
        self, arguments: ReplayArguments, model: nn.Module, pad_token_id: int | None = None
    ) -> None:
        if pad_token_id is None:
            pad_token_id = getattr(getattr(model, "config", None), "pad_token_id", None) or 0
        super().__init__(
            TokenMemory(arguments.capacity, generator=generator_for(arguments.seed, "admission")),
            arguments,
            generator=generator_for(arguments.seed, "replay"),
            pad_token_id=pad_token_id,
            encoder_decoder=is_encoder_decoder(model),
            longest=longest_input(model),
        )
        self.arguments = arguments
