"""The trainer of a run: SPHERE's GRPO trainer with the run's settings, which can begin anywhere.

Needs TRL, so nothing imports this module before a run starts.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl.trainer.grpo_config import GRPOConfig

from sphere_replay.coding.config import ADAMW, CodingConfig
from sphere_replay.coding.grading import Sampled, VisibleReward
from sphere_replay.coding.models import prompt_of
from sphere_replay.coding.problems import Problem
from sphere_replay.extras import require
from sphere_replay.integrations.trl import GroupReplayArguments, paper_settings
from sphere_replay.integrations.trl.trainer import SphereGRPOTrainer
from sphere_replay.randomness import generator_for, globally_seeded


@dataclass(frozen=True, kw_only=True)
class _Replay(GroupReplayArguments):
    """Those of a trainer, which takes a selection with options as an object; a run has names."""

    select_options: Mapping[str, Any] = field(default_factory=dict)


class CodingTrainer(SphereGRPOTrainer):
    """Begins with any update of the data, and samples from the random numbers of that update.

    Args:
        *args: As for `SphereGRPOTrainer`.
        reward: Judges programs.
        first_update: Updates before it are left out; what they led to is loaded elsewhere.
        random_seed: Seed of the stream's programs.
        **options: As for `SphereGRPOTrainer`.
    """

    def __init__(
        self,
        *args: Any,
        reward: VisibleReward,
        first_update: int,
        random_seed: int,
        **options: Any,
    ) -> None:
        self._reward = reward
        self._sampled: list[Sampled] = []
        self._first = first_update
        self._random_seed = random_seed
        self.sampling_seconds = 0.0
        """Spent on programs so far, the stream's and the candidates', rewards included."""
        super().__init__(*args, reward_funcs=reward, **options)

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """A micro-batch; samplers and dropout take no generator, so they are seeded by its place.

        What happened before leaves no trace in these numbers: a resumed run draws the same.
        """
        place = self._first * self.args.gradient_accumulation_steps + self._step
        numbers = generator_for(self._random_seed, f"programs {place}")
        with globally_seeded(numbers, self.accelerator.device):
            return super().training_step(model, inputs, num_items_in_batch)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        start = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        self.sampling_seconds += time.perf_counter() - start
        judged = self._reward.taken()
        if not self.replay.sampling:  # replay has candidates judged as well
            self._sampled += judged
        return output

    def taken(self) -> list[Sampled]:
        """The stream's programs since the last call."""
        sampled, self._sampled = self._sampled, []
        return sampled

    def _get_train_sampler(self, dataset: Any = None) -> "_Rest":
        args: Any = self.args  # of TRL
        skipped = self._first * args.generation_batch_size * args.steps_per_generation
        return _Rest(super()._get_train_sampler(dataset), skipped)


class _Rest(Sampler[int]):
    """What a sampler gives after its first entries."""

    def __init__(self, sampler: Sampler[int], skipped: int) -> None:
        self._sampler = sampler
        self._skipped = skipped

    def __iter__(self) -> Iterator[int]:
        return islice(iter(self._sampler), self._skipped, None)

    def __len__(self) -> int:
        return len(self._sampler) - self._skipped  # type: ignore[arg-type]  # TRL's has a length


def build_trainer(
    config: CodingConfig,
    model: Any,
    tokenizer: Any,
    updates: Sequence[Sequence[Problem]],
    reward: VisibleReward,
    *,
    first_update: int,
    folder: str,
) -> CodingTrainer:
    """The trainer for all updates from the given one on.

    Args:
        config: The run.
        model: With its adapters, if it has any.
        tokenizer: Of the model.
        updates: The current problems of every update.
        reward: Judges programs.
        first_update: Where to begin.
        folder: For what transformers wants to write; nothing of it is kept.
    """
    rows = [
        {"prompt": prompt_of(problem, tokenizer), "id": problem.id}
        for current in updates
        for problem in current
    ]
    settings = paper_settings(
        problems=config.batch,
        generations=config.generations,
        completion_length=config.max_completion,
        per_device=config.micro_batch,
    )
    on_cpu = config.device == "cpu"
    arguments = GRPOConfig(
        **settings
        | ADAMW
        | {
            "output_dir": folder,
            "learning_rate": config.lr,
            "max_grad_norm": config.clip,
            "weight_decay": config.weight_decay,
            "epsilon": config.epsilon,
            "temperature": config.temperature,
            "seed": config.seed,
            "use_cpu": on_cpu,
            "bf16": not on_cpu,
            "gradient_checkpointing": not on_cpu,
            "use_vllm": config.sampler == "vllm",
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "dataloader_pin_memory": not on_cpu,
        }
    )
    replay = _Replay(
        capacity=config.capacity,
        pool=config.pool,
        replay_batch=config.replay_batch,
        select="none" if config.host == "none" else config.select,
        alpha=config.alpha,
        virtual_lr=config.virtual_lr,
        strength=config.strength,
        favor=config.favor,
        replay_seed=config.seed,
        select_options=config.select_options,
    )
    # transformers seeds the global generator as it starts; afterwards it is as it was.
    with globally_seeded(generator_for(config.seed, "initialization")):
        trainer = CodingTrainer(
            model=model,
            reward=reward,
            args=arguments,
            train_dataset=require("datasets", "coding").Dataset.from_list(rows),
            processing_class=tokenizer,
            replay=replay,
            first_update=first_update,
            random_seed=config.seed,
        )
    trainer.remove_callback(PrinterCallback)  # what a run has to say is in its log
    return trainer


class Steps(TrainerCallback):
    """Tells when training begins, and after each update which one it was and how long it took.

    Args:
        begin: Called with the optimizer once it exists.
        step: Called with the update's number, from 0, and its seconds.
    """

    def __init__(self, begin: Callable[[Any], None], step: Callable[[int, float], None]) -> None:
        self._begin = begin
        self._step = step
        self._since = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before the first update."""
        self._begin(kwargs["optimizer"])

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before each update."""
        self._since = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After each."""
        self._step(state.global_step - 1, time.perf_counter() - self._since)
