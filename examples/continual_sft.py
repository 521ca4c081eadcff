"""Fine-tune a language model on one task, then on another: four ways to replay, side by side.

    python examples/continual_sft.py
    python examples/continual_sft.py --model HuggingFaceTB/SmolLM2-135M --steps 60 --seeds 1

Without `--model` a tiny model and its tokenizer are built on the spot, so nothing is downloaded.
What replay needs is marked by the word REPLAY; all else is an ordinary script for TRL. Needs the
`instruct` extra.
"""

import argparse
import random
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from trl import SFTConfig, SFTTrainer

from sphere_replay.integrations.transformers import SphereSFTTrainer, TaskSequence  # REPLAY
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.reports.statistics import mean, paired_difference

METHODS = ("uniform", "none", "mir", "sphere")
BATCH = 16
THINGS = [f"{kind}{number}" for kind in ("stone", "shell", "leaf", "coin") for number in range(10)]
COLORS = ["red", "green", "blue", "white", "black", "yellow"]
SIZES = ["tiny", "small", "medium", "large", "huge", "giant"]


def task(question: str, answers: list[str], seed: int) -> list[dict[str, str]]:
    """A fact about every thing, as prompt and completion."""
    draw = random.Random(f"{question} {seed}")
    return [
        {"prompt": f"{question} of {thing} :", "completion": f" {draw.choice(answers)}"}
        for thing in THINGS
    ]


def facts(seed: int) -> dict[str, list[dict[str, str]]]:
    """The tasks, in order."""
    return {"color": task("color", COLORS, seed), "size": task("size", SIZES, seed)}


def build(hub_id: str | None, seed: int) -> tuple[Any, Any]:
    """A model and its tokenizer: those of the hub, or tiny ones made here."""
    if hub_id:
        model = AutoModelForCausalLM.from_pretrained(hub_id, dtype=torch.float32)
        return model, AutoTokenizer.from_pretrained(hub_id)
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    asked = [f"{question} of {thing} :" for question in facts(0) for thing in THINGS]
    texts = [*asked, *COLORS, *SIZES]
    special = ["<pad>", "<eos>", "<unk>"]
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    with globally_seeded(generator_for(seed, "initialization")):
        return Qwen2ForCausalLM(config), tokenizer


@torch.no_grad()
def accuracy(model: Any, tokenizer: Any, rows: list[dict[str, str]]) -> float:
    """Share of answers whose every token would be the model's first choice."""
    model.eval()
    right = 0
    for fact in rows:
        prompt = tokenizer(fact["prompt"], return_tensors="pt").input_ids
        whole = tokenizer(fact["prompt"] + fact["completion"], return_tensors="pt").input_ids
        start = prompt.shape[1]
        guess = model(whole.to(model.device)).logits[0, start - 1 : -1].argmax(-1)
        right += int(torch.equal(guess.cpu(), whole[0, start:]))
    return right / len(rows)


def run(method: str, seed: int, options: argparse.Namespace) -> tuple[float, float, float]:
    """Accuracy on both tasks after training on one after the other, and seconds per update."""
    model, tokenizer = build(options.model, seed)
    tasks = facts(seed)
    passes = -(-options.steps * BATCH // len(THINGS))
    data = {name: Dataset.from_list(rows) for name, rows in tasks.items()}
    sequence = TaskSequence(data, passes=passes, seed=seed)  # REPLAY: tasks in order, with names
    with tempfile.TemporaryDirectory() as folder:
        arguments: dict[str, Any] = {
            "model": model,
            "processing_class": tokenizer,
            "train_dataset": sequence.stream,
            "args": SFTConfig(
                folder,
                num_train_epochs=1,
                per_device_train_batch_size=BATCH,
                learning_rate=options.lr,
                lr_scheduler_type="constant",
                train_sampling_strategy="sequential",
                seed=seed,
                packing=False,
                bf16=False,
                gradient_checkpointing=False,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
        }
        trainer: Any
        if method == "none":
            trainer = SFTTrainer(**arguments)
        else:
            replay = {"capacity": 40, "pool": 40, "replay_batch": 4, "replay_seed": seed}
            arguments["train_dataset"] = sequence
            trainer = SphereSFTTrainer(**arguments, replay={**replay, "select": method})  # REPLAY
        start = time.perf_counter()
        trainer.train()
        seconds = (time.perf_counter() - start) / trainer.state.global_step
    first, second = (accuracy(trainer.model, tokenizer, rows) for rows in tasks.values())
    return first, second, seconds


def main() -> None:
    """Every method with every seed, and what each gains over uniform replay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a causal language model of the hub; tiny if left out")
    parser.add_argument("--steps", type=int, default=60, help="updates per task")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate")
    options = parser.parse_args()
    print(f"{'replay':10}{'first':>10}{'second':>10}{'first, over uniform':>28}{'s/update':>11}")
    uniform: dict[int, float] = {}
    for method in METHODS:
        results = [run(method, seed, options) for seed in range(options.seeds)]
        kept = {seed: 100 * first for seed, (first, _, _) in enumerate(results)}
        uniform = uniform or kept
        first, second, seconds = (mean(column) for column in zip(*results, strict=True))
        gain, cell = paired_difference(kept, uniform), ""
        if method != "uniform" and gain is not None:
            cell = f"{gain.mean:+.1f}"
            if gain.interval is not None:
                cell += " [{:+.1f}, {:+.1f}]".format(*gain.interval)
        print(f"{method:10}{first:10.0%}{second:10.0%}{cell:>28}{seconds:11.3f}", flush=True)


if __name__ == "__main__":
    main()
