"""What replay in GRPO cannot work with, found before training starts."""

from typing import Any

from trl.data_utils import is_conversational

from sphere_replay.errors import DataError
from sphere_replay.integrations.transformers.callback import check_trainer
from sphere_replay.integrations.transformers.zero import check_zero
from sphere_replay.integrations.trl.problems import PROMPT, Problems


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
