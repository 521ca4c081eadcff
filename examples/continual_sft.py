"""Fine-tune a language model on one task, then on another, without and with SPHERE.

    python examples/continual_sft.py
    python examples/continual_sft.py --model HuggingFaceTB/SmolLM2-135M --steps 60

Without `--model` a tiny model and its tokenizer are built on the spot, so nothing is downloaded.
What replay needs is marked by the word REPLAY; all else is an ordinary script for TRL.
"""

import argparse
import random
import tempfile
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

from sphere_replay.integrations.transformers import ReplayArguments, SphereSFTTrainer  # REPLAY
from sphere_replay.randomness import generator_for, globally_seeded

THINGS = [f"{kind}{number}" for kind in ("stone", "shell", "leaf", "coin") for number in range(10)]
COLORS = ["red", "green", "blue", "white", "black", "yellow"]
SIZES = ["tiny", "small", "medium", "large", "huge", "giant"]


def task(question: str, answers: list[str], seed: int) -> list[dict[str, str]]:
    """A fact about every thing, as prompt and completion."""
    draw = random.Random(seed)
    return [
        {"prompt": f"{question} of {thing} :", "completion": f" {draw.choice(answers)}"}
        for thing in THINGS
    ]


TASKS = [task("color", COLORS, seed=1), task("size", SIZES, seed=2)]


def build(hub_id: str | None) -> tuple[Any, Any]:
    """A model and its tokenizer: those of the hub, or tiny ones made here."""
    if hub_id:
        model = AutoModelForCausalLM.from_pretrained(hub_id, dtype=torch.float32)
        return model, AutoTokenizer.from_pretrained(hub_id)
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = [fact["prompt"] + fact["completion"] for facts in TASKS for fact in facts]
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
    with globally_seeded(generator_for(0, "initialization")):
        return Qwen2ForCausalLM(config), tokenizer


@torch.no_grad()
def accuracy(model: Any, tokenizer: Any, facts: list[dict[str, str]]) -> float:
    """Share of answers whose every token would be the model's first choice."""
    model.eval()
    right = 0
    for fact in facts:
        prompt = tokenizer(fact["prompt"], return_tensors="pt").input_ids
        whole = tokenizer(fact["prompt"] + fact["completion"], return_tensors="pt").input_ids
        start = prompt.shape[1]
        guess = model(whole.to(model.device)).logits[0, start - 1 : -1].argmax(-1)
        right += int(torch.equal(guess.cpu(), whole[0, start:]))
    return right / len(facts)


def run(method: str, options: argparse.Namespace) -> tuple[float, float, float]:
    """Accuracy on task 1 before and after task 2, and on task 2."""
    model, tokenizer = build(options.model)
    replay: Any = ReplayArguments(capacity=200, pool=128, every=4, replay_batch=4)  # REPLAY
    before = 0.0
    for facts in TASKS:
        with tempfile.TemporaryDirectory() as folder:
            arguments: dict[str, Any] = {
                "model": model,
                "processing_class": tokenizer,
                "train_dataset": Dataset.from_list(facts),
                "args": SFTConfig(
                    folder,
                    max_steps=options.steps,
                    per_device_train_batch_size=16,
                    learning_rate=options.lr,
                    lr_scheduler_type="constant",
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
            if method == "SPHERE":
                trainer = SphereSFTTrainer(**arguments, replay=replay)  # REPLAY
                replay = trainer.replay  # REPLAY: the next task starts with this memory
            else:
                trainer = SFTTrainer(**arguments)
            trainer.train()
            model = trainer.model
        before = before or accuracy(model, tokenizer, TASKS[0])
    return before, accuracy(model, tokenizer, TASKS[0]), accuracy(model, tokenizer, TASKS[1])


def main() -> None:
    """Print the accuracies with and without replay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a causal language model of the hub; tiny if left out")
    parser.add_argument("--steps", type=int, default=100, help="updates per task")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate")
    options = parser.parse_args()
    results = {method: run(method, options) for method in ("no replay", "SPHERE")}
    print(f"{'accuracy':16}{'task 1 before':>16}{'task 1 after':>16}{'task 2':>10}")
    for method, (before, after, second) in results.items():
        print(f"{method:16}{before:16.0%}{after:16.0%}{second:10.0%}")


if __name__ == "__main__":
    main()
