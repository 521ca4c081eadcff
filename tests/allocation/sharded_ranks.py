"""Ranks of sharded allocations: they allocate, draw, write what they got; then one of them dies.

python sharded_ranks.py FOLDER
"""

import json
import multiprocessing
import os
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sphere_replay import Sphere
from sphere_replay.allocation import CalibratedScales, FixedScales, NeighborScales, SpreadScales
from sphere_replay.allocation.sharded import ShardedAllocation, allocate_sharded
from sphere_replay.geometry import Cosine, Euclidean, LostRankError
from sphere_replay.storage.saved import save_tree
from tensors import random_memories, seeded

SHARES = {2: [0.7, 1.0], 4: [0.3, 0.31, 0.8, 1.0]}
"""Where each rank's memories end: ranks need not have the same number, and one has few."""

RANKS, DRAWS = 4, 40


def clustered(size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Features in tight clusters (so that fast distances will not do), increments and labels."""
    features, increments = random_memories(size, 24, seed=3)
    labels = torch.arange(size) % 7
    features = 0.01 * features + random_memories(7, 24, seed=4)[0][labels]
    features[5] = features[size - 1]  # coincident, on different ranks
    return features.to(dtype), increments.to(dtype), labels


def spread(size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    features, increments = random_memories(size, 24, seed=5)
    return features.to(dtype), increments.to(dtype), torch.arange(size) % 5


CASES: dict[str, tuple[Sphere, tuple[Tensor, Tensor, Tensor]]] = {
    "radii": (Sphere(scales=NeighborScales()), spread(1301, torch.float32)),
    "clusters": (Sphere(scales=NeighborScales()), clustered(1301, torch.float32)),
    "counted": (Sphere(scales=CalibratedScales(), agreement=0.5), spread(700, torch.float64)),
    "median": (Sphere(distance=Euclidean(), scales=SpreadScales()), clustered(333, torch.float32)),
    "cosine": (
        Sphere(distance=Cosine(), scales=NeighborScales(), leave_one_out=True),
        spread(333, torch.float64),
    ),
    "logarithms": (Sphere(scales=FixedScales(0.3, 0.5, 1e-4)), spread(333, torch.float32)),
    "few": (Sphere(scales=NeighborScales(), control="permuted"), spread(60, torch.float64)),
}


def shards(size: int, ranks: int) -> list[slice]:
    ends = [0, *(round(share * size) for share in SHARES[ranks])]
    return [slice(*pair) for pair in pairwise(ends)]


def sharded(name: str, rank: int, ranks: int, group: Any = None) -> ShardedAllocation:
    recipe, (features, increments, labels) = CASES[name]
    own = shards(len(increments), ranks)[rank]
    return allocate_sharded(
        increments[own],
        features[own],
        recipe,
        labels=labels[own] if recipe.agreement else None,
        generator=seeded(8),
        group=group,
    )


def found(name: str, rank: int, ranks: int, group: Any = None) -> dict[str, Any]:
    part = sharded(name, rank, ranks, group)
    drawn = part.whole.draw(DRAWS, generator=seeded(9))
    return {
        "weights": part.weights.clone(),
        "whole": part.whole.weights,
        "neighbors": part.whole.effective_neighbors,
        "drawn": drawn,
        "held": part.held(drawn),
        "scalars": [part.whole.eps_s, part.whole.eps_t, part.whole.temperature, part.whole.mass],
    }


def complaint(rank: int, ranks: int) -> str:
    """What a rank is told if the features of one are not numbers."""
    features, increments, _ = spread(60, torch.float32)
    own = shards(60, ranks)[rank]
    if rank == 2:
        features[own.start] = torch.nan
    try:
        allocate_sharded(increments[own], features[own])
    except ValueError as error:
        return str(error)
    return "none"


def disagreement(rank: int, ranks: int) -> list[str]:
    """What a rank is told if one has another precision, or labels of its own."""
    features, increments, labels = spread(60, torch.float32)
    own = shards(60, ranks)[rank]
    odd = rank == 1
    half = torch.bfloat16 if odd else torch.float16
    told = []
    for feature, increment, label in (
        (features.to(half), increments, None),
        (features, increments.double() if odd else increments, None),
        (features, increments, labels if odd else None),
    ):
        try:
            own_labels = None if label is None else label[own]
            allocate_sharded(increment[own], feature[own], labels=own_labels)
        except ValueError as error:
            told.append(str(error))
    for options in (
        {"recipe": Sphere.vision(alpha=0.2 if odd else 0.5)},
        {"running_scale": None if odd else 1.0},
        {"generator": seeded(rank), "recipe": Sphere.vision(control="permuted")},
    ):
        try:
            allocate_sharded(increments[own], features[own], **options)
        except ValueError as error:
            told.append(str(error))
    given: Any = features[own].tolist() if odd else features[own]
    try:
        allocate_sharded(increments[own], given)
    except ValueError as error:
        told.append(str(error))
    return told


def join(folder: Path, name: str, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / name}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(minutes=5),
    )


def work(folder: Path, rank: int) -> None:
    join(folder, "working", rank)
    pair = dist.new_group([2, 3])
    results: dict[str, Any] = {name: found(name, rank, RANKS) for name in CASES}
    results["complaint"] = complaint(rank, RANKS)
    results["disagreement"] = disagreement(rank, RANKS)
    if rank >= 2:
        results["pair"] = {name: found(name, rank - 2, 2, pair) for name in CASES}
    torch.set_num_threads(2)
    results["again"] = found("clusters", rank, RANKS)
    save_tree(folder, f"rank-{rank}", results)
    dist.barrier()
    os._exit(0)  # a group that is destroyed in order can hang, see integrations.pairs


def die(folder: Path, rank: int) -> None:
    join(folder, "dying", rank)
    sharded("few", rank, RANKS)  # all are connected
    if rank == 1:
        os._exit(3)
    try:
        sharded("radii", rank, RANKS)
    except LostRankError as error:
        (folder / f"said-{rank}").write_text(str(error))
        os._exit(error.exit_code)


def main() -> None:
    """Both, on ranks that are forked: torch is imported once."""
    folder = Path(sys.argv[1])
    fork = multiprocessing.get_context("fork")
    codes = {}
    for task in (work, die):
        ranks = [fork.Process(target=task, args=(folder, rank)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(300)
        codes[task.__name__] = [process.exitcode for process in ranks]
        for process in ranks:
            process.kill()
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
