"""The learner: AdamW on stream loss + λ · replay loss, one update at a time.

The two losses are summed, each a mean over its examples of the mean cross entropy of their target
tokens. Replay starts with the second batch and may return examples of the current task; memories
enter after the update.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sphere_replay.errors import DivergenceError
from sphere_replay.instruct.config import BETA1, EPSILON, InstructConfig
from sphere_replay.instruct.models import lora_targets
from sphere_replay.language import (
    LanguageReplay,
    Row,
    TokenExamples,
    TokenMemory,
    check_model,
    features_and_losses,
    pad_rows,
)
from sphere_replay.language.models import BaseModel, trainable, with_adapters
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.runs.job import Costs
from sphere_replay.scoring import NonFiniteError


@dataclass(frozen=True)
class Update:
    """What one update did, for the log."""

    loss: float
    replay_loss: float | None = None
    drawn_tasks: tuple[int, ...] = ()
    """The task of each replayed memory."""


class Learner:
    """A model with its trainable parameters, optimizer and replay."""

    def __init__(self, config: InstructConfig, base: BaseModel) -> None:
        self._config = config
        self._pad = base.tokenizer.pad_token_id
        self.model = with_adapters(
            base,
            generator_for(config.seed, "initialization"),
            rank=config.rank,
            alpha=config.lora_alpha,
            targets=lora_targets,
            dropout=config.lora_dropout,
        )
        check_model(self.model)
        self._trainable = trainable(self.model)
        self.optimizer = torch.optim.AdamW(
            self._trainable.values(),
            lr=config.lr,
            betas=(BETA1, config.beta2),
            eps=EPSILON,
            weight_decay=config.weight_decay,
        )
        self.replay = LanguageReplay(
            TokenMemory(config.capacity, generator=generator_for(config.seed, "admission")),
            config,
            generator=generator_for(config.seed, "replay"),
            recipe=config.recipe,
            examples=TokenExamples(base.tokenizer.pad_token_id, base.is_encoder_decoder),
        )
        self.costs = Costs()

    def observe(self, rows: Sequence[Row], task: int, step: int) -> Update:
        """Learn from a stream batch."""
        self.model.train()
        self.optimizer.zero_grad()
        # Dropout takes no generator. Seeded by the step, it is the same for all selections, and
        # the same after a resumption.
        with globally_seeded(generator_for(self._config.seed, f"dropout {step}")):
            loss = features_and_losses(self.model, pad_rows(rows, self._pad))[1].mean()
            self._check(loss.item())
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            replayed, drawn = self._replay(rows, task)
        torch.nn.utils.clip_grad_norm_(self._trainable.values(), self._config.clip)
        self.optimizer.step()
        self.costs.forward += len(rows) + len(drawn)
        self.costs.backward += len(rows) + len(drawn)
        return Update(loss.item(), replayed, drawn)

    def state_dict(self) -> dict[str, Any]:
        """Everything the next update depends on."""
        return {
            "parameters": {name: value.detach() for name, value in self._trainable.items()},
            "optimizer": self.optimizer.state_dict(),
            "replay": self.replay.state_dict(),
            "costs": asdict(self.costs),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        with torch.no_grad():
            for name, value in self._trainable.items():
                value.copy_(state["parameters"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.replay.load_state_dict(state["replay"])
        self.costs = Costs(**state["costs"])

    def _replay(self, rows: Sequence[Row], task: int) -> tuple[float | None, tuple[int, ...]]:
        """Add the replay gradient; the replay loss, and the tasks of what was drawn."""
        if self._config.host == "none":
            return None, ()
        self.replay.keep_rows(rows, [task] * len(rows))
        try:
            replayed = self.replay.step(self.model)
        except NonFiniteError as error:
            raise DivergenceError(str(error)) from error
        if replayed is None:
            return None, ()
        self.costs.forward += replayed.draw.cost
        self.costs.scored += replayed.draw.cost
        self._check(replayed.loss)
        return replayed.loss, tuple(replayed.draw["task"].tolist())

    def _check(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise DivergenceError(f"the loss is {loss}")
