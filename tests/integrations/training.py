"""Small trainings through the real trainers, with a tokenizer trained on the spot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-untyped]  # has no types
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from language import tiny
from sphere_replay.integrations.transformers import (
    ReplayArguments,
    ReplaySession,
    SphereSeq2SeqTrainer,
    SphereTrainer,
)

TASKS = (
    ("is it warm", {"sun": "yes", "ice": "no", "fire": "yes", "snow": "no"}),
    ("what color", {"sun": "yellow", "ice": "white", "fire": "red", "snow": "white"}),
)
FILLERS = ("the", "a very old", "some", "one more", "that", "this quite small")
KINDS = ("seq2seq", "causal", "sft")


def examples(count: int) -> list[dict[str, Any]]:
    """`count` questions and answers, task after task."""
    half = (count + 1) // 2
    made = []
    for index in range(count):
        task, number = divmod(index, half)
        question, answers = TASKS[task]
        thing = list(answers)[number % 4]
        prompt = f"{question} {FILLERS[number % 6]} {thing}"
        made.append({"prompt": prompt, "completion": " " + answers[thing], "task": task})
    return made


def tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.WordLevel(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = [example["prompt"] + example["completion"] for example in examples(48)]
    special = ["<pad>", "</s>", "<unk>"]
    raw.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # the library's
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def tokenized(count: int, *, encoder_decoder: bool) -> Dataset:
    words = tokenizer()

    def encode(text: str) -> list[int]:
        ids = words(text, add_special_tokens=False)["input_ids"]
        assert isinstance(ids, list)
        return ids

    rows = []
    for example in examples(count):
        source, target = encode(example["prompt"]), [*encode(example["completion"]), 1]
        if encoder_decoder:
            row = {"input_ids": source, "labels": target}
        else:
            row = {"input_ids": source + target, "labels": [-100] * len(source) + target}
        rows.append({**row, "attention_mask": [1] * len(row["input_ids"]), "task": example["task"]})
    return Dataset.from_list(rows)


def settings(kind: str, folder: Path, **options: Any) -> TrainingArguments:
    """Arguments of a short run on one processor, quiet and in order."""
    common: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "train_sampling_strategy": "sequential",
        "dataloader_pin_memory": False,
    }
    if kind == "sft":
        from trl.trainer.sft_config import SFTConfig  # slow, and most tests do without

        common |= {"bf16": False, "gradient_checkpointing": False, "max_length": 32}
        return SFTConfig(**(common | options))
    return {"seq2seq": Seq2SeqTrainingArguments, "causal": TrainingArguments}[kind](
        **(common | options)
    )


def plain_class(kind: str) -> Any:
    """The trainer class without replay."""
    if kind == "sft":
        from trl.trainer.sft_trainer import SFTTrainer

        return SFTTrainer
    return {"seq2seq": Seq2SeqTrainer, "causal": Trainer}[kind]


def replaying_class(kind: str) -> Any:
    """The trainer class with replay."""
    if kind == "sft":
        from sphere_replay.integrations.transformers import SphereSFTTrainer

        return SphereSFTTrainer
    return {"seq2seq": SphereSeq2SeqTrainer, "causal": SphereTrainer}[kind]


ARGUMENTS: dict[str, Any] = {"capacity": 16, "pool": 12, "every": 2, "replay_batch": 3}


def trainer(
    kind: str,
    folder: Path,
    *,
    replay: ReplayArguments | ReplaySession | dict[str, Any] | None = None,
    model: Any = None,
    examples_: int = 48,
    evaluated: int = 0,
    base: Any = None,
    callbacks: Sequence[TrainerCallback] = (),
    **options: Any,
) -> Any:
    """A trainer of a kind; `base` replaces the class, and gets no replay argument."""
    both = kind == "seq2seq"
    if model is None:
        model = tiny.t5() if both else tiny.qwen2()
    words = tokenizer()
    given: dict[str, Any] = {
        "model": model,
        "args": settings(kind, folder, **options),
        "processing_class": words,
        "callbacks": list(callbacks),
    }
    if kind == "sft":
        given["train_dataset"] = Dataset.from_list(examples(examples_))
    else:
        given["train_dataset"] = tokenized(examples_, encoder_decoder=both)
        given["data_collator"] = DataCollatorForSeq2Seq(words, model=model if both else None)
    if evaluated:
        given["eval_dataset"] = tokenized(evaluated, encoder_decoder=both)
    if base is None:
        base = replaying_class(kind)
        if replay is None or isinstance(replay, dict):
            replay = ReplayArguments(**(ARGUMENTS | (replay or {})))
        given["replay"] = replay
    return base(**given)


def weights(trained: Any) -> dict[str, Tensor]:
    """All of them; where they are spread over processes, every process takes part."""
    named = trained.model.state_dict().items()
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for name, value in named
    }


def same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def history(trained: Any) -> list[dict[str, Any]]:
    """The log without times."""
    slow = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos")
    return [
        {key: value for key, value in entry.items() if key not in slow}
        for entry in trained.state.log_history
    ]


class Gradients(TrainerCallback):
    """Keeps the gradient of every update, as the optimizer gets it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        named = kwargs["model"].named_parameters()
        self.seen.append({name: p.grad.clone() for name, p in named if p.grad is not None})
