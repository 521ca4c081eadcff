"""Replay over the updates of trainers: the paper's, on a memory made for a model."""

from torch import nn

from sphere_replay.integrations.transformers.arguments import ReplayArguments
from sphere_replay.language import LanguageReplay, TokenMemory, is_encoder_decoder, longest_input
from sphere_replay.randomness import generator_for


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
