"""The trainer of a run: the one that users get, with the run's settings, which can begin anywhere.

The losses of the stream and of replay are summed, each a mean over its examples of the mean cross
entropy of their target tokens. Replay starts with the second batch and may return examples of the
current task.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from sphere_replay.errors import DivergenceError
from sphere_replay.instruct.config import BETA1, EPSILON, InstructConfig
from sphere_replay.instruct.models import lora_targets
from sphere_replay.integrations.transformers import ReplayArguments, ReplaySession, SphereTrainer
from sphere_replay.integrations.transformers.session import token_examples
from sphere_replay.language import LanguageReplaySettings, Row, features_and_losses, pad_rows
from sphere_replay.language.memory import TASK
from sphere_replay.language.models import BaseModel, trainable, with_adapters
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.runs.job import Costs


class InstructTrainer(SphereTrainer):
    """Takes the updates of a run from any of them on.

    Args:
        config: The run.
        base: The pretrained model; adapters are put on it.
        rows: The stream, each row with its task.
        updates: Places of the rows of each update.
    """

    def __init__(
        self,
        config: InstructConfig,
        base: BaseModel,
        rows: Sequence[Row],
        updates: list[list[int]],
    ) -> None:
        model = with_adapters(
            base,
            generator_for(config.seed, "initialization"),
            rank=config.rank,
            alpha=config.lora_alpha,
            targets=lora_targets,
            dropout=config.lora_dropout,
        )
        self._config = config
        self._updates = updates
        self._first = 0
        self._trainable = trainable(model)
        self._adamw = torch.optim.AdamW(
            self._trainable.values(),
            lr=config.lr,
            betas=(BETA1, config.beta2),
            eps=EPSILON,
            weight_decay=config.weight_decay,
            foreach=True,  # the same numbers, sooner: there are many small parameters
        )
        self.costs = Costs()
        self.loss = math.nan
        """Of the stream, in the last update."""
        pad = base.tokenizer.pad_token_id
        # transformers seeds the global generator as it starts; afterwards it is as it was.
        with globally_seeded(generator_for(config.seed, "loop")):
            super().__init__(
                model=model,
                args=_arguments(config, use_cache=model.config.use_cache),
                train_dataset=rows,
                data_collator=partial(pad_rows, pad_token_id=pad),
                optimizers=(self._adamw, None),
                replay=_Replay(config, model, pad),
            )
        self.remove_callback(PrinterCallback)  # what a run has to say is in its log

    @property
    def step(self) -> int:
        """The update that is next, or under way."""
        return self._first + self.state.global_step

    def train_from(self, first: int, after_update: Callable[[int], None]) -> None:
        """Train from an update on; `after_update` is told the number of each that is done."""
        self._first = first
        self.add_callback(_AfterUpdate(lambda: after_update(self.step - 1)))
        # Loaders draw a number now and then; it changes nothing, and must change nothing outside.
        with globally_seeded(generator_for(self._config.seed, "loop")):
            self.train()

    def get_train_dataloader(self) -> Any:
        """The rest of the updates; the last of a task may be smaller than others."""
        return DataLoader(
            self.train_dataset,  # type: ignore[arg-type]  # a list is a dataset
            batch_sampler=self._updates[self._first :],
            collate_fn=self.data_collator,
        )

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """An update; dropout takes no generator.

        Seeded by the step, it is the same for all selections, and the same after a resumption.
        """
        with globally_seeded(generator_for(self._config.seed, f"dropout {self.step}")):
            loss = super().training_step(model, inputs, num_items_in_batch)
        passed, replayed = len(inputs["labels"]), self.replayed
        if replayed is not None:
            _check(replayed.loss)
            passed += len(replayed.draw)
            self.costs.forward += replayed.draw.cost
            self.costs.scored += replayed.draw.cost
        self.costs.forward += passed
        self.costs.backward += passed
        return loss

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **options: Any) -> Tensor:
        """A mean over examples, as replay has it, and not over the tokens of all of them."""
        loss = features_and_losses(model, inputs)[1].mean()
        self.loss = loss.item()
        _check(self.loss)
        return loss

    def floating_point_ops(self, inputs: Any) -> int:
        """None: nobody asks, and counting all parameters in every update takes its time."""
        return 0

    def state_dict(self) -> dict[str, Any]:
        """Everything the next update depends on."""
        return {
            "parameters": {name: value.detach() for name, value in self._trainable.items()},
            "optimizer": self._adamw.state_dict(),
            "replay": self.replay.state_dict(),
            "costs": asdict(self.costs),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        with torch.no_grad():
            for name, value in self._trainable.items():
                value.copy_(state["parameters"][name])
        self._adamw.load_state_dict(state["optimizer"])
        self.replay.load_state_dict(state["replay"])
        self.costs = Costs(**state["costs"])


class _Replay(ReplaySession):
    """Replay with the settings of a run, which may have none."""

    def __init__(self, config: InstructConfig, model: nn.Module, pad: int) -> None:
        shared = {each.name: getattr(config, each.name) for each in fields(LanguageReplaySettings)}
        # Options of a selection are part of the object.
        shared["select"] = config.selection_on(config.recipe)
        arguments = ReplayArguments(**shared, replay_seed=config.seed, task_field=TASK)
        super().__init__(arguments, model, token_examples(model, pad))
        self._remembers = config.host != "none"

    def begin(self) -> None:
        """A run that goes on where it was stopped begins no task."""

    def keep(
        self, batch: Mapping[str, object], tasks: Sequence[int] | Tensor | None = None
    ) -> None:
        """Without replay, nothing."""
        if self._remembers:
            super().keep(batch, tasks)


class _AfterUpdate(TrainerCallback):
    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._tell()


def _arguments(config: InstructConfig, *, use_cache: bool) -> TrainingArguments:
    return TrainingArguments(
        output_dir=tempfile.gettempdir(),  # it must be named, and nothing is written
        num_train_epochs=1,
        lr_scheduler_type="constant",
        max_grad_norm=config.clip,
        seed=config.seed,
        use_cpu=True,
        use_cache=use_cache,
        dataloader_pin_memory=False,
        save_strategy="no",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
    )


def _check(loss: float) -> None:
    if not math.isfinite(loss):
        raise DivergenceError(f"the loss is {loss}")
