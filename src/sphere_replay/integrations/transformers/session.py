"""Replay over the updates of trainers: what a user says about it, and the memory it works on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from sphere_replay.language import (
    Examples,
    LanguageReplay,
    LanguageReplaySettings,
    TokenExamples,
    TokenMemory,
    is_encoder_decoder,
    longest_input,
)
from sphere_replay.randomness import generator_for


@dataclass(frozen=True, kw_only=True)
class ReplayArguments(LanguageReplaySettings):
    """Settings of replay in a trainer; the defaults are the paper's for instruction tuning."""

    replay_seed: int = 0
    """Seed of admission and of the draws; each has a generator of its own."""
    task_field: str | None = None
    """Column of the training set with each example's task, a number or a name, for the logs."""
    allow_plain_checkpoint: bool = False
    """Resume from a checkpoint that was saved without replay, with an empty memory."""

    def __post_init__(self) -> None:
        self.check_replay()


def token_examples(model: nn.Module, pad_token_id: int | None = None) -> TokenExamples:
    """Tokens with labels for this model; padded as it is used to, or by 0, unless said."""
    if pad_token_id is None:
        pad_token_id = getattr(getattr(model, "config", None), "pad_token_id", None) or 0
    return TokenExamples(pad_token_id, is_encoder_decoder(model))


class ReplaySession(LanguageReplay):
    """The memory of one or several trainings in sequence, and their replay.

    Hand the session of one trainer to the next, and the next one replays what the first has seen:

        second = SphereTrainer(..., replay=first.replay)

    Args:
        arguments: The settings.
        model: Tells how long its inputs may be.
        examples: What its batches hold.
    """

    def __init__(self, arguments: ReplayArguments, model: nn.Module, examples: Examples) -> None:
        super().__init__(
            TokenMemory(
                arguments.capacity, generator=generator_for(arguments.replay_seed, "admission")
            ),
            arguments,
            generator=generator_for(arguments.replay_seed, "replay"),
            examples=examples,
            longest=longest_input(model),
        )
        self.arguments = arguments


ReplayLike = ReplayArguments | ReplaySession | Mapping[str, Any] | str | Path | None
"""What trainers take for `replay`: settings in any form, or a session to go on from."""
