"""GRPO with TRL, with replay.

An update begins as ever. When the gradient of its last micro-batch is in `.grad`, some remembered
problems are sampled anew, scored, drawn, and the gradient of their mean group loss is added. Only
then are the update's own problems offered to the memory. Clipping, the optimizer and all else
follow as ever.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import TrainerControl, TrainerState, TrainingArguments
from trl.data_utils import is_conversational
from trl.trainer.grpo_trainer import GRPOTrainer

from sphere_replay.errors import DataError
from sphere_replay.integrations.transformers.bookkeeping import Bookkeeping
from sphere_replay.integrations.transformers.callback import check_sharding, check_trainer
from sphere_replay.integrations.transformers.task_evaluation import TaskEvaluation
from sphere_replay.integrations.transformers.tasks import adopt_tasks
from sphere_replay.integrations.transformers.zero import at_update_end, check_zero
from sphere_replay.integrations.trl.arguments import GroupReplayArguments
from sphere_replay.integrations.trl.problems import PROMPT, Problems
from sphere_replay.integrations.trl.session import GroupReplay
from sphere_replay.scoring import is_sharded


class SphereGRPOTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` with replay.

    All of replay happens in `training_step`. Of the other overrides,
    `_generate_and_score_completions` notes which problems the stream has sampled and whether their
    outcomes were mixed, `_get_per_token_logps_and_entropies` lets scoring read the
    log-probabilities that TRL's loss computes anyway, and `train` is the only place that is told
    which checkpoint to resume from.

    Args:
        *args: As for `GRPOTrainer`.
        replay: The settings, as `GroupReplayArguments`, a mapping or a YAML file.
        embeddings: Raw embeddings of the problems' prompts `[problems, d]`, in order of first
            appearance; the base model's unless given.
        task_metric: What the tasks of a `TaskSequence` are compared by.
        **options: As for `GRPOTrainer`; `train_dataset` may be a `TaskSequence`, with
            `shuffle_dataset=False`.
    """

    def __init__(
        self,
        *args: Any,
        replay: GroupReplayArguments | Mapping[str, Any] | str | Path | None = None,
        embeddings: Tensor | None = None,
        task_metric: str = "reward",
        **options: Any,
    ) -> None:
        arguments = GroupReplayArguments.of(replay)
        tasks, args, options = adopt_tasks(args, options, whole=True)
        super().__init__(*args, **options)
        self.task_evaluation: TaskEvaluation | None = None
        """Evaluates a `TaskSequence` after each of its tasks."""
        if tasks is not None:
            self.task_evaluation = TaskEvaluation(tasks, task_metric).attach(self)
        check_settings(self)
        problems = Problems.of(self.train_dataset, arguments.id_field)
        check_prompts(self, problems)
        self.replay = GroupReplay(self, arguments, problems, embeddings)
        """What is remembered, and how it is replayed."""
        self._noted: list[Tensor] | None = None
        self._bookkeeping = GroupBookkeeping(self.replay)
        # First, so that trackers and progress bars see the metrics it adds to a log.
        self.callback_handler.callbacks.insert(0, self._bookkeeping)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any
    ) -> Any:
        """Train; see `Trainer.train`."""
        self._bookkeeping.note_source(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *args, **options)

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """A micro-batch; after the last one of an update, replay."""
        base: Any = super()  # its methods are untyped
        with at_update_end(self.accelerator, self.replay.step):
            loss: Tensor = base.training_step(model, inputs, num_items_in_batch)
        return loss

    @contextmanager
    def log_probabilities_noted(self) -> Iterator[list[Tensor]]:
        """The list receives what the model says of each token `[n, t]` while the block runs."""
        noted: list[Tensor] = []
        self._noted = noted
        try:
            yield noted
        finally:
            self._noted = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        assert self.model is not None
        if self.model.training and not self.replay.sampling:
            self.replay.note(inputs, output["advantages"])
        return output

    def _get_per_token_logps_and_entropies(self, *args: Any, **options: Any) -> Any:
        results = super()._get_per_token_logps_and_entropies(*args, **options)
        if self._noted is not None:
            self._noted.append(results[0].detach())
        return results


class GroupBookkeeping(Bookkeeping[GroupReplay]):
    """Starts replay with a training, and keeps it in checkpoints and logs."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Continue from a checkpoint if the trainer did; its embeddings are those of the start."""
        model = kwargs["model"]
        check_sharding(args, model)
        if is_sharded(model):
            # Who has finished a program goes on as long as others need its parameters.
            inner = model.get_base_model() if hasattr(model, "get_base_model") else model
            model._is_fsdp_managed_module = inner._is_fsdp_managed_module = True
        self.restore(args, state)
        self.session.begin()


def check_settings(trainer: Any) -> None:
    """Refuse settings under which groups have no loss of their own, or no gradient to follow."""
    args = trainer.args
    check_trainer(args)
    check_zero()
    if args.fp16:
        raise ValueError(
            "fp16=True keeps a scaled gradient, along which the virtual step would lead elsewhere: "
            "use bf16=True, or neither"
        )
    if args.use_liger_kernel:
        raise ValueError(
            "use_liger_kernel=True may take the loss out of TRL's own method, which replay calls: "
            "set use_liger_kernel=False"
        )
    if args.num_iterations != 1 or args.gradient_accumulation_steps % args.steps_per_generation:
        raise ValueError(
            f"num_iterations={args.num_iterations}, steps_per_generation="
            f"{args.steps_per_generation} and gradient_accumulation_steps="
            f"{args.gradient_accumulation_steps} train several updates on the same programs, but "
            "replay needs those of each update: set num_iterations=1 and leave "
            "steps_per_generation and generation_batch_size out"
        )
    if args.remove_unused_columns:
        raise ValueError(
            "remove_unused_columns=True drops the column that names the problems: leave it out"
        )
    if trainer.accelerator.num_processes > 1 and args.top_entropy_quantile < 1:
        raise ValueError(
            "top_entropy_quantile < 1 ranks the tokens of all processes together, so a group has "
            "no loss of its own: set top_entropy_quantile=1.0, or train on one process"
        )
    if getattr(trainer, "environment_factories", None) is not None:
        raise ValueError(
            "environments make up their prompts while they run, but replay needs to know each "
            "problem's: put them into the training set"
        )


def check_prompts(trainer: Any, problems: Problems) -> None:
    """Conversations need a template that turns them into text."""
    if trainer.processing_class.chat_template is not None:
        return
    for row in problems.rows:
        if is_conversational({PROMPT: trainer.train_dataset[row][PROMPT]}):
            raise DataError(
                f"row {row} of the training set is a conversation, but the tokenizer has no chat "
                "template: use that of an instruction-tuned model, set "
                "tokenizer.chat_template=..., or make the prompts plain text"
            )
