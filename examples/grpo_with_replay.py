"""GRPO on two families of problems, one after the other: four ways to replay, side by side.

The script of a TRL user plus the three lines marked REPLAY. A tiny model is built on the spot and
answers in single words; a problem is solved if the answer contains the right one. The second family
asks about the same things in other words and wants other answers, so that what the first one has
taught is overwritten:

    python examples/grpo_with_replay.py
    python examples/grpo_with_replay.py --model HuggingFaceTB/SmolLM2-135M --lr 1e-5 --seeds 1

Needs the `coding` extra.
"""

import argparse
import tempfile
import time
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from trl import GRPOConfig

from sphere_replay.integrations.trl import GroupReplayArguments, SphereGRPOTrainer  # REPLAY
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.reports.statistics import mean, paired_difference

METHODS = ("uniform", "none", "mir", "sphere")
THINGS = ("sun", "ice", "fire", "snow", "sea", "sand", "night", "grass")
ANSWERS = (
    ("color", ("yellow", "blue", "red", "white", "blue", "yellow", "black", "green")),
    ("feel", ("warm", "cold", "warm", "cold", "wet", "dry", "cold", "wet")),
)


def problems(family: int) -> list[dict[str, Any]]:
    """What every thing looks like, or how it feels."""
    question, answers = ANSWERS[family]
    return [
        {"id": f"{question}-{thing}", "prompt": f"{question} of {thing} :", "answer": answer}
        for thing, answer in zip(THINGS, answers, strict=True)
    ]


def solved(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """The reward: 1 if the right word is there."""
    return [float(right in text.split()) for text, right in zip(completions, answer, strict=True)]


def build(name: str | None, seed: int) -> tuple[Any, Any]:
    """A model and its tokenizer; tiny ones unless named."""
    if name is not None:
        return AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    raw = Tokenizer(models.WordLevel(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = [row["prompt"] + " " + row["answer"] for k in (0, 1) for row in problems(k)]
    special = ["<pad>", "<end>", "<unk>"]
    raw.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<end>", unk_token="<unk>"
    )
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
    )
    with globally_seeded(generator_for(seed, "initialization")):
        return Qwen2ForCausalLM(config), tokenizer


def accuracy(model: Any, tokenizer: Any, family: int) -> float:
    """Share of a family's problems that the model solves by its likeliest words."""
    model.eval()
    rows = problems(family)
    right = 0.0
    for row in rows:
        ids = tokenizer(row["prompt"], return_tensors="pt")["input_ids"]
        answer = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
        text = tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True)
        right += solved([text], [row["answer"]])[0]
    return right / len(rows)


def run(method: str, seed: int, options: argparse.Namespace) -> tuple[float, float, float]:
    """Share solved of both families after one after the other, and seconds per update."""
    model, tokenizer = build(options.model, seed)
    rows = [row for family in (0, 1) for row in problems(family) * options.passes]
    replay = GroupReplayArguments(  # REPLAY
        capacity=16, pool=8, replay_batch=4, select=method, replay_seed=seed
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = SphereGRPOTrainer(  # REPLAY
            model=model,
            reward_funcs=solved,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            replay=replay,
            args=GRPOConfig(
                folder,
                num_generations=8,
                per_device_train_batch_size=64,
                max_completion_length=3,
                shuffle_dataset=False,
                num_train_epochs=1,
                loss_type="dr_grpo",
                scale_rewards="none",
                learning_rate=options.lr,
                lr_scheduler_type="constant",
                seed=seed,
                bf16=False,
                gradient_checkpointing=False,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
        )
        start = time.perf_counter()
        trainer.train()
        seconds = (time.perf_counter() - start) / trainer.state.global_step
    return accuracy(model, tokenizer, 0), accuracy(model, tokenizer, 1), seconds


def main() -> None:
    """Every method with every seed, and what each gains over uniform replay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a causal language model of the hub; tiny if left out")
    parser.add_argument("--passes", type=int, default=30, help="passes over each family")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate")
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
