"""Fine-tune a model that does not fit on one device on a sequence of tasks, with replay.

    accelerate launch --config_file examples/fsdp.yaml examples/continual_sft_fsdp.py \
        --model Qwen/Qwen2.5-7B-Instruct --tasks tasks/ --output_dir out \
        --learning_rate 1e-5 --num_train_epochs 2 --capacity 3000 --pool 512

FSDP2 spreads parameters, gradients and optimizer over the GPUs; every process scores a part of the
candidates and steps its own shard. A task is a file `NAME.train.jsonl`, with `NAME.test.jsonl`
beside it, of rows with `prompt` and `completion`; tasks are learned in the order of their names.
All settings of TRL and of replay are options, or stand in a YAML file given by `--config`. On one
process, without accelerate, the same script trains as ever. Needs the `instruct` extra.
"""

from dataclasses import dataclass, field
from pathlib import Path

from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, TrlParser

from sphere_replay.integrations.transformers import (
    ReplayArguments,
    SphereSFTTrainer,
    TaskSequence,
)


@dataclass
class Options:
    """What neither TRL nor replay asks for."""

    model: str = field(
        metadata={"help": "a causal language model: a folder, or its name on the hub"}
    )
    tasks: str = field(metadata={"help": "folder with NAME.train.jsonl and NAME.test.jsonl"})
    rank: int = field(default=0, metadata={"help": "of a LoRA adapter; 0 trains all parameters"})


def sequence(folder: Path) -> TaskSequence:
    """The tasks of a folder, in the order of their names."""
    names = sorted(path.name.removesuffix(".train.jsonl") for path in folder.glob("*.train.jsonl"))
    if not names:
        raise SystemExit(f"{folder} has no file NAME.train.jsonl")
    parts = ("train", "test")
    return TaskSequence(
        {
            name: load_dataset(
                "json", data_files={part: str(folder / f"{name}.{part}.jsonl") for part in parts}
            )
            for name in names
        }
    )


def main() -> None:
    """Train, and show what every task was worth after every task."""
    parser = TrlParser((Options, SFTConfig, ReplayArguments))
    options, arguments, replay = parser.parse_args_and_config()
    trainer = SphereSFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model),
        processing_class=AutoTokenizer.from_pretrained(options.model),
        args=arguments,
        train_dataset=sequence(Path(options.tasks)),
        peft_config=LoraConfig(r=options.rank, target_modules="all-linear")
        if options.rank
        else None,
        replay=replay,
    )
    trainer.train()
    if trainer.is_fsdp_enabled:  # checkpoints are sharded; what is kept in the end is whole
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model()
    assert trainer.task_evaluation is not None
    if trainer.is_world_process_zero():
        print(trainer.task_evaluation.matrix)
        trainer.task_evaluation.matrix.heat_map(Path(arguments.output_dir) / "tasks.png")


if __name__ == "__main__":
    main()
