"""A frozen trunk: the lower blocks of a decoder read each prompt once, only the upper ones train.

What enters the first trained block is the same at every update, so it is computed once and kept on
the disk for other runs. The model that trains is the upper part: a table of those states takes the
place of its embeddings, and a prompt becomes the numbers of its positions in that table. Its last
positions are enough, for they have read the others; training, scoring and evaluation then cost a
few blocks on a few positions.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sphere_replay.errors import DataError
from sphere_replay.language import token_batches
from sphere_replay.language.rows import pad_prompts
from sphere_replay.runs.progress import step_progress
from sphere_replay.storage.files import cached_folder
from sphere_replay.storage.saved import load_tree, save_tree

_NAME = "trunk"
_FORMAT = 2


def cut_trunk(
    model: Any,
    prompts: Sequence[Sequence[Tensor]],
    *,
    blocks: int,
    window: int,
    tokens: int,
    home: Path | None,
    weights: str,
    progress: bool = False,
) -> dict[tuple[int, ...], Tensor]:
    """Leave the model its last blocks, on a table of the states that enter them.

    Args:
        model: A causal language model in the manner of Llama; only its last blocks stay trainable.
        prompts: All token ids `[t]` that it will ever be asked about, in groups; the states of a
            group are kept in a file of their own.
        blocks: How many blocks stay.
        window: How many of a prompt's last positions the upper part sees.
        tokens: Padded tokens that the lower part reads at a time.
        home: Where states are kept; None: nowhere.
        weights: Digest of the model, which states depend on.
        progress: Show a bar while reading.

    Returns:
        For each prompt the numbers of its positions in the table, int64 `[at most window]`.
    """
    decoder = model.get_decoder()
    layers = _layers(decoder, blocks)
    # A copy that shares the weights: the lower blocks, and nothing behind them.
    lower = copy.copy(decoder)
    lower._modules = dict(decoder._modules)
    lower.layers, lower.norm = layers[:-blocks], nn.Identity()
    lower.eval()
    origin = {"format": _FORMAT, "model": weights, "blocks": len(lower.layers), "window": window}
    numbers: dict[tuple[int, ...], Tensor] = {}
    tables, taken = [], 0
    for group in prompts:
        new = list(dict.fromkeys(key for key in map(_key, group) if key not in numbers))
        if not new:
            continue
        read = partial(_read, lower, [torch.tensor(key) for key in new], window, tokens, progress)
        tables.append(_kept(read, {**origin, "prompts": new}, home))
        for key in new:
            numbers[key] = torch.arange(taken, taken + min(window, len(key)))
            taken += len(numbers[key])
    model.requires_grad_(False)
    decoder.layers = layers[-blocks:].requires_grad_(True)
    decoder.embed_tokens = nn.Embedding.from_pretrained(torch.cat(tables))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return numbers


def _key(prompt: Tensor) -> tuple[int, ...]:
    return tuple(prompt.tolist())


def _layers(decoder: Any, blocks: int) -> nn.ModuleList:
    layers, norm = getattr(decoder, "layers", None), getattr(decoder, "norm", None)
    if not isinstance(layers, nn.ModuleList) or not isinstance(norm, nn.Module):
        raise DataError(
            f"{type(decoder).__name__} has no list of layers with a norm behind it, so it cannot "
            "be cut into a frozen and a trained part: leave trained_blocks out"
        )
    if not 1 <= blocks < len(layers):
        raise DataError(
            f"the model has {len(layers)} blocks, so trained_blocks is 1 to {len(layers) - 1}, "
            f"got {blocks}"
        )
    return layers


def _kept(read: Callable[[], Tensor], origin: dict[str, Any], home: Path | None) -> Tensor:
    if home is None:
        return read()

    def build(folder: Path) -> None:
        save_tree(folder, _NAME, {"states": read()})

    _, kept = load_tree(cached_folder(home, _NAME, origin, build), _NAME)
    states: Tensor = kept["states"]
    return states


def _read(
    lower: nn.Module, prompts: Sequence[Tensor], window: int, tokens: int, progress: bool
) -> Tensor:
    """What leaves the lower part at the last positions of the prompts, end to end; `[n, d]`."""
    found: dict[int, Tensor] = {}
    with step_progress("Reading prompts", hidden=not progress) as report, torch.no_grad():
        for places in token_batches([len(prompt) for prompt in prompts], tokens):
            inputs = pad_prompts([prompts[place] for place in places.tolist()], 0)
            states = lower(**inputs, use_cache=False)[0]
            for place, of_prompt in zip(places.tolist(), states, strict=True):
                found[place] = of_prompt[: len(prompts[place])][-window:]
            if report is not None:
                report(len(found), len(prompts), "")
    return torch.cat([found[place] for place in range(len(prompts))])
