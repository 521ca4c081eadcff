"""The embedded model: a small T5, its tokenizer and its base weights.

The tokenizer is a byte-pair one trained on the corpus' training sentences. What all prompts of a
task have in common (instruction and options) is one token: a tiny model has no use for reading it
word by word, and its sentences would drown in it. The base weights come from a short course of
denoising on the training prompts, without their answers: like any base model, the tiny one has read
text before it is tuned, and has never seen a label.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sphere_replay.extras import require
from sphere_replay.instruct.encoding import PromptEncoder
from sphere_replay.instruct.tasks import ANSWER, Corpus
from sphere_replay.language import Row, features_and_losses, pad_rows
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.storage.files import cached_folder

FORMAT = 1
"""Part of every cache key; raise it when building changes."""
_PAD, _END, _UNKNOWN = "<pad>", "</s>", "<unk>"
MOST_WORDS = 48
"""Of a sentence that tokenizer and base weights are made from."""


@dataclass(frozen=True)
class TinySpec:
    """Size of the model and of its course of denoising."""

    vocabulary: int = 4000
    width: int = 64
    feed_forward: int = 256
    layers: int = 1
    heads: int = 4
    steps: int = 400
    batch: int = 16
    tokens: int = 64
    """Longest prompt of the course."""
    deleted: int = 4
    """Tokens that are deleted from a prompt, at most."""
    lr: float = 1e-3
    seed: int = 0


def tiny_folder(corpus: Corpus, home: Path, spec: TinySpec | None = None) -> Path:
    """Folder of the corpus' tiny model in the format of transformers; built at the first call."""
    spec = spec or TinySpec()
    origin = {"format": FORMAT, "corpus": corpus.checksum, **asdict(spec)}
    return cached_folder(
        home, f"tiny-{corpus.name}", origin, lambda folder: _build(corpus, spec, folder)
    )


def _build(corpus: Corpus, spec: TinySpec, folder: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums are split by threads, and the base must be the same for all
    try:
        tokenizer = corpus_tokenizer(corpus, spec.vocabulary)
        model = build_t5(tokenizer, spec)
        denoise(model, tokenizer, corpus_texts(corpus, tokenizer, spec.tokens), spec)
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def corpus_tokenizer(corpus: Corpus, vocabulary: int) -> Any:
    """The tokenizer of a corpus: words from its training sentences and labels, whole headings."""
    tasks = [task for _, task in sorted(corpus.tasks.items())]
    sentences = [_beginning(item.sentence) for task in tasks for item in task.train]
    labels = [label for task in tasks for label in task.labels]
    return train_tokenizer([*sentences, *labels], vocabulary, [ANSWER, *(t.head for t in tasks)])


def train_tokenizer(texts: Sequence[str], vocabulary: int, phrases: Sequence[str] = ()) -> Any:
    """A byte-pair tokenizer of transformers that ends every sequence; phrases are single tokens."""
    library = require("tokenizers", "instruct")
    bytes_of = library.pre_tokenizers.ByteLevel
    tokenizer = library.Tokenizer(library.models.BPE(unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = bytes_of(add_prefix_space=True)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_PAD, _END, _UNKNOWN],
        initial_alphabet=bytes_of.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([library.AddedToken(phrase, normalized=False) for phrase in phrases])
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single=f"$A {_END}", special_tokens=[(_END, tokenizer.token_to_id(_END))]
    )
    return require("transformers", "instruct").PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        eos_token=_END,
        unk_token=_UNKNOWN,
    )


def build_t5(tokenizer: Any, spec: TinySpec) -> Any:
    """A T5 with random weights that fits the tokenizer."""
    transformers = require("transformers", "instruct")
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=spec.width,
        d_kv=spec.width // spec.heads,
        d_ff=spec.feed_forward,
        num_layers=spec.layers,
        num_decoder_layers=spec.layers,
        num_heads=spec.heads,
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    with globally_seeded(generator_for(spec.seed, "initialization")):
        return transformers.T5ForConditionalGeneration(config)


def corpus_texts(corpus: Corpus, tokenizer: Any, tokens: int) -> list[Tensor]:
    """Token ids of all training prompts, task by task."""
    encoder = PromptEncoder(tokenizer, is_encoder_decoder=True, max_source=tokens)
    return [
        ids
        for _, task in sorted(corpus.tasks.items())
        for ids in encoder.prompts(task, [_beginning(item.sentence) for item in task.train])
    ]


def _beginning(sentence: str) -> str:
    """As much of a sentence as a prompt has room for, about."""
    return " ".join(sentence.split(" ")[:MOST_WORDS])


def cooccurrence_embeddings(
    texts: Sequence[Tensor], weights: Tensor, width: int, generator: torch.Generator
) -> Tensor:
    """Unit-variance embeddings `[V, width]` from which tokens share a text, zero where unknown.

    The leading singular vectors of the positive pointwise mutual information
    log[p(a, b) / (p(a) p(b))]_+ : neighbours in meaning, for the price of counting.
    """
    counts = torch.zeros(len(weights), len(weights))
    for text in texts:
        present = torch.unique(text)
        present = present[weights[present] > 0]
        counts[present[:, None], present] += 1
    counts.fill_diagonal_(0)
    share = counts.sum(1) / counts.sum()
    chance = share[:, None] * share
    information = (counts / counts.sum() / chance.clamp(min=1e-12)).clamp(min=1).log()
    with globally_seeded(generator):  # the factorization begins with random directions
        vectors, values, _ = torch.svd_lowrank(information, q=width)
    found: Tensor = vectors * values.sqrt()
    scale: Tensor = math.sqrt(width) / found.norm(dim=1, keepdim=True).clamp(min=1e-6)
    return found * scale


def denoise(model: Any, tokenizer: Any, texts: Sequence[Tensor], spec: TinySpec) -> list[float]:
    """Name the tokens that were deleted from a text, for some steps; returns the loss of each.

    Nothing marks the gap: a marked one is filled from its neighbours, and the model would learn to
    look beside the mark instead of reading the text. Rare tokens are deleted more often, because
    frequent ones say little about what a text is about.
    """
    generator = generator_for(spec.seed, "denoising")
    weights = _deletion_weights(tokenizer, texts)
    known = cooccurrence_embeddings(texts, weights, spec.width, generator)
    embeddings = model.get_input_embeddings().weight.data
    embeddings.copy_(torch.where(known.norm(dim=1, keepdim=True) > 0.5, known, embeddings))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=spec.lr, betas=(0.9, 0.99), weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, spec.lr, total_steps=spec.steps + 1, pct_start=0.1
    )
    usable = [text for text in texts if float(weights[text].sum()) > 0]
    model.train()
    losses = []
    for _ in range(spec.steps):
        chosen = torch.randint(len(usable), (spec.batch,), generator=generator).tolist()
        rows = [
            delete_tokens(usable[place], weights, spec.deleted, tokenizer.eos_token_id, generator)
            for place in chosen
        ]
        loss = features_and_losses(model, pad_rows(rows, tokenizer.pad_token_id))[1].mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def delete_tokens(
    text: Tensor, weights: Tensor, count: int, end: int, generator: torch.Generator
) -> Row:
    """The text without `count` of its tokens, drawn by weight, and these tokens as its target."""
    chances = weights[text]
    count = min(count, int(chances.count_nonzero()))
    gone = torch.multinomial(chances, count, generator=generator)
    kept = torch.ones_like(text, dtype=torch.bool).index_fill(0, gone, False)
    rest, target = text[kept], torch.cat([text[gone], torch.tensor([end])])
    return {"input_ids": rest, "attention_mask": torch.ones_like(rest), "labels": target}


def _deletion_weights(tokenizer: Any, texts: Sequence[Tensor]) -> Tensor:
    """frequency^-1/2 for each token `[V]`; 0 for headings, special tokens and those never seen."""
    frequency = torch.cat(list(texts)).bincount(minlength=len(tokenizer)).float()
    weights = torch.where(frequency > 0, frequency.clamp(min=1).pow(-0.5), 0.0)
    weights[torch.tensor(sorted(tokenizer.added_tokens_decoder))] = 0.0
    return weights
