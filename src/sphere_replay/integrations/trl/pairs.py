"""Replay of preferences: pairs of a chosen and a rejected answer, with the trainer's own loss.

    class MyTrainer(PairReplayMixin, RewardTrainer): ...

An example is a pair. Its loss is what the trainer's `compute_loss` says of a batch that holds this
pair alone; its features are the states of the chosen answer, averaged over its tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from trl.trainer.dpo_trainer import DPOTrainer

from sphere_replay.errors import ConfigError, DataError
from sphere_replay.integrations.transformers.mixin import ReplayMixin
from sphere_replay.integrations.transformers.zero import refuse_zero
from sphere_replay.integrations.trl.groups import books_aside
from sphere_replay.language import Row, pad_rows
from sphere_replay.language.rows import attended
from sphere_replay.scoring import is_sharded

SIDES = ("chosen", "rejected")
_FIELDS = ("input_ids", "attention_mask", "completion_mask", "token_type_ids")


class PairExamples:
    """Batches of TRL's preference collators: chosen answers first, then the rejected ones.

    Args:
        trainer: The trainer whose loss it is.
        pad_token_id: Fills rows up.
    """

    def __init__(self, trainer: Any, pad_token_id: int) -> None:
        self._trainer = trainer
        self._pad_token_id = pad_token_id

    def check(self, model: nn.Module) -> None:
        """A model with a backbone, whole on every process."""
        refuse_zero("replay of preferences", "which has not been tried: use torchrun alone")
        if is_sharded(model):
            raise ValueError(
                "replay of preferences has not been tried on sharded models: train with plain data "
                "parallelism (torchrun), or without replay"
            )

    def rows(self, batch: Mapping[str, object]) -> list[Row]:
        """A row has both answers, each without padding."""
        strange = [name for name in batch if name not in _FIELDS]
        if strange:
            raise DataError(
                f"pairs with {', '.join(strange)} cannot be replayed, only tokens can: leave "
                "precompute_ref_log_probs, margins and images out"
            )
        fields = {k: v.detach().cpu() for k, v in batch.items() if isinstance(v, Tensor)}
        both = list(attended(fields["attention_mask"]))
        half = len(both) // 2
        return [
            {
                f"{side}_{name}": values[place, both[place]].clone()
                for side, place in zip(SIDES, (index, half + index), strict=True)
                for name, values in fields.items()
            }
            for index in range(half)
        ]

    def counts(self, row: Row) -> bool:
        """Every pair has a loss."""
        return True

    def batch(self, rows: Sequence[Row], device: torch.device) -> list[dict[str, Tensor]]:
        """Each pair as a batch of its own."""
        names = [name.removeprefix("chosen_") for name in rows[0] if name.startswith("chosen_")]
        return [
            pad_rows(
                [{name: row[f"{side}_{name}"] for name in names} for side in SIDES],
                self._pad_token_id,
                device,
            )
            for row in rows
        ]

    def evaluate(self, model: nn.Module, batch: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
        """Pair by pair, by the trainer's own method."""
        trainer, found = self._trainer, []
        with books_aside(trainer), _alone(trainer.accelerator):
            for pair in batch:
                with _states_seen(model) as seen, trainer.compute_loss_context_manager():
                    loss = trainer.compute_loss(model, dict(pair))
                answer = pair.get("completion_mask", pair["attention_mask"])[0]
                states = seen[0][0].float() * answer[:, None]
                found.append((states.sum(0) / answer.sum().clamp(min=1), loss.float()))
        features, losses = zip(*found, strict=True)
        return torch.stack(features), torch.stack(losses)


class PairReplayMixin(ReplayMixin):
    """Put it before a trainer on preferences: `class Mine(PairReplayMixin, RewardTrainer)`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.replay.asks_labels:
            raise ConfigError(
                "the selection lets neighbours vote on answers, and a pair of answers is no label: "
                "take select='sphere', or a recipe with agreement=0"
            )

    def replay_examples(self) -> PairExamples:
        """Pairs."""
        return PairExamples(self, getattr(self.processing_class, "pad_token_id", None) or 0)


class SphereDPOTrainer(PairReplayMixin, DPOTrainer):
    """`trl.DPOTrainer` with replay."""


@contextmanager
def _states_seen(model: Any) -> Iterator[list[Tensor]]:
    """The list receives the states after the last layer `[n, t, d]` of forwards in the block."""
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    seen: list[Tensor] = []
    hook = whole.base_model.register_forward_hook(
        lambda module, inputs, output: seen.append(output[0])
    )
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def _alone(accelerator: Any) -> Iterator[None]:
    """Inside, metrics are not gathered: processes evaluate different numbers of pairs."""
    own = vars(accelerator)
    kept = {name: own[name] for name in ("gather", "gather_for_metrics") if name in own}
    own.update(gather=lambda tensor: tensor, gather_for_metrics=lambda data, *rest: data)
    try:
        yield
    finally:
        del own["gather"], own["gather_for_metrics"]
        own.update(kept)
