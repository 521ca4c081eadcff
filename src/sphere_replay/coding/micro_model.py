"""The embedded policy: a small Qwen2 that has read half-right programs, and its tokenizer.

It is made on the spot from micro-problems that are in no split of the runs: a short course of
supervised learning on prompts with programs, some of them references and some near misses. So the
policy begins where reinforcement learning has something to do: it writes Python, is right now and
then, and does not write the same program twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sphere_replay.coding.problems import Problem, digest, wrong_programs
from sphere_replay.coding.problems.micro_wrong import expression_of, near_misses
from sphere_replay.extras import require
from sphere_replay.language import pad_rows
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.storage.files import cached_folder

FORMAT = 1
"""Part of every cache key; raise it when building changes."""
_PAD, _END = "<pad>", "<end>"


@dataclass(frozen=True)
class MicroSpec:
    """Size of the model and of its course."""

    vocabulary: int = 384
    width: int = 128
    feed_forward: int = 256
    layers: int = 2
    heads: int = 4
    steps: int = 300
    batch: int = 32
    right: float = 0.25
    """Share of references among the programs of the course; the others are near misses."""
    habits: int = 2
    """Near misses of a problem that the course shows, those that earn the reward first."""
    lr: float = 2e-3
    seed: int = 0


def micro_folder(lessons: Sequence[Problem], home: Path, spec: MicroSpec) -> Path:
    """Folder of the policy in the format of transformers; built at the first call."""
    origin = {"format": FORMAT, "lessons": digest(lessons), **asdict(spec)}
    return cached_folder(home, "micro", origin, lambda folder: _build(lessons, spec, folder))


def _build(lessons: Sequence[Problem], spec: MicroSpec, folder: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums are split by threads, and the policy must be the same for all
    try:
        programs = {problem.id: near_wrong(problem)[: spec.habits] for problem in lessons}
        tokenizer = micro_tokenizer(lessons, programs, spec.vocabulary)
        model = build_qwen2(tokenizer, spec)
        teach(model, tokenizer, lessons, programs, spec)
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def near_wrong(problem: Problem) -> tuple[str, ...]:
    """Wrong programs with one thing changed; without those that know an answer by heart."""
    misses = set(near_misses(expression_of(problem.reference)))
    return tuple(p for p in wrong_programs(problem) if expression_of(p) in misses)


def micro_tokenizer(
    lessons: Sequence[Problem], programs: dict[str, tuple[str, ...]], vocabulary: int
) -> Any:
    """A byte-pair tokenizer of transformers: any text can be read and is given back unchanged."""
    library = require("tokenizers", "coding")
    bytes_of = library.pre_tokenizers.ByteLevel
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = bytes_of(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_PAD, _END],
        initial_alphabet=sorted(bytes_of.alphabet()),
        show_progress=False,
    )
    texts = [
        text
        for problem in lessons
        for text in (problem.prompt, problem.reference, *programs[problem.id])
    ]
    tokenizer.train_from_iterator(texts, trainer)
    return require("transformers", "coding").PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=_PAD, eos_token=_END, padding_side="left"
    )


def build_qwen2(tokenizer: Any, spec: MicroSpec) -> Any:
    """A Qwen2 with random weights that fits the tokenizer."""
    transformers = require("transformers", "coding")
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=spec.width,
        intermediate_size=spec.feed_forward,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        max_position_embeddings=256,
        initializer_range=spec.width**-0.5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with globally_seeded(generator_for(spec.seed, "initialization")):
        return transformers.Qwen2ForCausalLM(config)


def teach(
    model: Any,
    tokenizer: Any,
    lessons: Sequence[Problem],
    programs: dict[str, tuple[str, ...]],
    spec: MicroSpec,
) -> None:
    """Supervised learning of programs after prompts, for some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, spec.lr, total_steps=spec.steps + 1, pct_start=0.1
    )
    model.train()
    for rows in _batches(tokenizer, lessons, programs, spec):
        loss = model(**pad_rows(rows, tokenizer.pad_token_id)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def _batches(
    tokenizer: Any,
    lessons: Sequence[Problem],
    programs: dict[str, tuple[str, ...]],
    spec: MicroSpec,
) -> Iterator[list[dict[str, Tensor]]]:
    """Prompts, of all stages alike, with programs of the mixture; programs alone are targets."""
    generator = generator_for(spec.seed, "lessons")
    end = tokenizer.eos_token_id
    by_stage = [
        [place for place, lesson in enumerate(lessons) if lesson.stage == stage]
        for stage in dict.fromkeys(lesson.stage for lesson in lessons)
    ]
    prompts = [tokenizer(problem.prompt)["input_ids"] for problem in lessons]
    targets = [
        [[*ids, end] for ids in tokenizer([p.reference, *programs[p.id]])["input_ids"]]
        for p in lessons
    ]

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    for _ in range(spec.steps):
        rows = []
        for _ in range(spec.batch):
            places = by_stage[draw(len(by_stage))]
            place = places[draw(len(places))]
            prompt, (reference, *wrong) = prompts[place], targets[place]
            right = not wrong or float(torch.rand((), generator=generator)) < spec.right
            target = reference if right else wrong[draw(len(wrong))]
            ids = torch.tensor([*prompt, *target])
            labels = torch.tensor([-100] * len(prompt) + target)
            rows.append(
                {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
            )
        yield rows
