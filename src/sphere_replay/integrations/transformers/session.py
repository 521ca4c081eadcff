"""Replay over a trainer's updates: the window of stream batches, and what happens at its end."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sphere_replay.integrations.transformers.arguments import ReplayArguments
from sphere_replay.language import (
    LanguageReplay,
    Row,
    TokenMemory,
    is_encoder_decoder,
    longest_input,
    row_length,
    rows_of,
)
from sphere_replay.randomness import generator_for


class ReplaySession:
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
        self.arguments = arguments
        self.language = LanguageReplay(
            TokenMemory(arguments.capacity, generator=generator_for(arguments.seed, "admission")),
            generator=generator_for(arguments.seed, "replay"),
            pad_token_id=pad_token_id,
            encoder_decoder=is_encoder_decoder(model),
            select=arguments.select,
            recipe=arguments.recipe,
            top=arguments.top,
            every=arguments.refresh_every,
            pool=arguments.pool,
            unit_mass=arguments.unit_mass,
            virtual_lr=arguments.virtual_lr,
            token_budget=arguments.token_budget,
        )
        self._longest = longest_input(model)
        self._window: list[tuple[list[Row], list[int]]] = []

    @property
    def memory(self) -> TokenMemory:
        """What may be replayed."""
        return self.language.memory

    def begin(self) -> None:
        """A training starts: forget batches of one that was cut short."""
        self._window = []
        if len(self.memory):
            self.language.start_task()

    def keep(self, batch: Mapping[str, object], tasks: Sequence[int] | Tensor | None) -> None:
        """Note a stream batch; its rows are offered to the memory at the end of the window."""
        rows = rows_of(batch, encoder_decoder=self.language.encoder_decoder)
        for row in rows:
            check_length(row_length(row), self._longest)
        numbers = [self.language.task] * len(rows) if tasks is None else tasks
        self._window.append((rows, torch.as_tensor(numbers).flatten().tolist()))

    def step(self, model: nn.Module, scaler: Any = None, *, unscaled: bool = False) -> None:
        """The window's gradient stands in `.grad`: add that of replay, then admit its rows.

        Args:
            model: The model, not its distributed wrapper.
            scaler: The gradient scaler of half-precision training, if there is one. The virtual
                step follows the gradient without its factor, the replay gradient gets it. A window
                whose gradient overflowed is going to be skipped, so nothing is drawn.
            unscaled: The factor has already been taken out of `.grad`.
        """
        scales = scaler is not None and scaler.is_enabled()
        factor = float(scaler.get_scale()) if scales and not unscaled else 1.0
        if len(self.memory) and not (scales and _overflowed(model)):
            draw = self.language.draw(model, self.arguments.batch, grad_scale=factor)
            self.language.add_gradient(
                model, draw, strength=self.arguments.strength, grad_scale=factor
            )
        # Batch by batch: on several processes the stream then has the order it has on one.
        for rows, tasks in self._window:
            self.language.admit(rows, tasks)
        self._window = []

    def metrics(self) -> dict[str, float]:
        """For the trainer's log, since the last one."""
        return {f"replay/{name}": value for name, value in self.language.metrics().items()}

    def state_dict(self) -> dict[str, Any]:
        """Memory, candidates, random streams and counters."""
        return self.language.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.language.load_state_dict(state)


def check_length(length: int, longest: int | None) -> None:
    """An example the model can read whole."""
    if longest is not None and length > longest:
        raise ValueError(
            f"an example has {length} tokens but the model's limit is {longest} "
            "(max_position_embeddings): truncate the training set, or leave such examples out"
        )


def _overflowed(model: nn.Module) -> bool:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return not all(bool(gradient.isfinite().all()) for gradient in gradients)
