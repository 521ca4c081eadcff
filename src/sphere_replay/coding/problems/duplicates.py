"""Near duplicates among prompts: centred embeddings with a cosine above 0.90.

The default embedding needs no model: counts of words and pairs of words, hashed to a fixed length.
Pass a function of your own, such as the mean-pooled states of a language model, for better ones.
"""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sphere_replay.geometry.embeddings import center_embeddings

Embedding = Callable[[Sequence[str]], Tensor]
"""Prompts -> features `[m, d]`."""

DIMENSIONS = 4096
_TOKEN = re.compile(r"\w+|[^\w\s]")


def hashed_ngrams(prompts: Sequence[str]) -> Tensor:
    """Features `[m, 4096]`: square roots of counts of words and pairs of words, signed hashing."""
    features = torch.zeros(len(prompts), DIMENSIONS)
    for row, prompt in enumerate(prompts):
        words = _TOKEN.findall(prompt.lower())
        grams = Counter([*words, *(" ".join(pair) for pair in pairwise(words))])
        for gram, count in grams.items():
            code = zlib.crc32(gram.encode("utf-8", "surrogatepass"))
            # The highest bit is the sign: grams that share a place cancel on average.
            sign = 1.0 if code >> 31 else -1.0
            features[row, code % DIMENSIONS] += sign * count**0.5
    return features


def near_duplicates(
    prompts: Sequence[str], embed: Embedding = hashed_ngrams, above: float = 0.90
) -> dict[int, int]:
    """Prompts that repeat an earlier one: its index -> the index of the one that is kept.

    Embeddings are l2-normalised, centred over all prompts and normalised again. Each prompt is
    compared with those before it that were kept, so that of every group the first stays. Equal
    prompts are duplicates whatever their embedding.
    """
    if not prompts:
        return {}
    features = embed(prompts)
    if features.ndim != 2 or len(features) != len(prompts):
        raise ValueError(
            f"embed should give {len(prompts)} rows [m, d], got the shape {tuple(features.shape)}"
        )
    points = center_embeddings(features)
    kept: list[int] = []
    compared = torch.empty_like(points)  # its first rows are the points of those that were kept
    seen: dict[str, int] = {}
    repeats: dict[int, int] = {}
    for index, prompt in enumerate(prompts):
        if prompt in seen:
            repeats[index] = seen[prompt]
            continue
        if kept:
            cosine, place = (compared[: len(kept)] @ points[index]).max(dim=0)
            if cosine > above:
                repeats[index] = kept[int(place)]
                continue
        compared[len(kept)] = points[index]
        kept.append(index)
        seen[prompt] = index
    return repeats
