"""Updates on two processes over gloo, with whole models and with FSDP2's shards.

A part of the benchmark `instruct`, in processes of its own: python -m benchmarks.ranks FILE
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import Cell
from benchmarks.timing import Timing, interleave
from sphere_replay.instruct.config import InstructConfig
from sphere_replay.language import features_and_losses, pad_rows

WHOLE, SHARDED = "2 processes", "2 processes, sharded"


def cells_of(config: InstructConfig, home: Path, updates: int, rounds: int) -> list[Cell]:
    """Time updates with uniform replay and with SPHERE, sharded and not; `home` has the model."""
    asked = home / "ranks.json"
    asked.write_text(
        json.dumps({"config": asdict(config), "updates": updates, "rounds": rounds}), "utf-8"
    )
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run(
        [sys.executable, *command, "-m", "benchmarks.ranks", str(asked)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )
    taken = json.loads(asked.with_suffix(".taken").read_text("utf-8"))
    each = {name: seconds / updates for name, seconds in taken["seconds"].items()}
    timing = Timing(each, taken["rounds"])
    return [
        timing.cell(name, f"ER, {kind}")
        for kind in (WHOLE, SHARDED)
        for name in (f"ER, {kind}", f"SPHERE, {kind}")
    ]


def main(path: Path) -> None:
    """What each of the two processes does; the first one writes what it took."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    asked = json.loads(path.read_text("utf-8"))
    turns = {
        f"{name}, {kind}": _turn(
            InstructConfig(**asked["config"] | {"select": select}),
            path.parent,
            asked["updates"],
            sharded=kind == SHARDED,
        )
        for kind in (WHOLE, SHARDED)
        for name, select in (("ER", "uniform"), ("SPHERE", "sphere"))
    }
    # Seconds and not the processor's time: waiting for the other process is part of the price.
    timing = interleave(turns, least_rounds=asked["rounds"], least_seconds=0.0)
    if dist.get_rank() == 0:
        path.with_suffix(".taken").write_text(
            json.dumps({"seconds": timing.seconds, "rounds": timing.rounds}), "utf-8"
        )
    dist.barrier()
    os._exit(0)  # gloo's threads may hang in an orderly end


def _turn(config: InstructConfig, home: Path, updates: int, *, sharded: bool) -> Callable[[], None]:
    """A call that makes some updates, each process with its half of the batch."""
    from benchmarks.instruct import model_of, trainer_of  # which imports this module

    trainer, rows = trainer_of(config, None, home)
    own = rows[dist.get_rank() :: dist.get_world_size()]
    size = config.batch // dist.get_world_size()
    places = itertools.cycle(range(0, len(own) - size + 1, size))
    model, replay = model_of(trainer), trainer.replay
    if sharded:
        _spread(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    model.train()

    def update() -> None:
        start = next(places)
        batch = own[start : start + size]
        optimizer.zero_grad()
        features_and_losses(model, pad_rows(batch, 0))[1].mean().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if not sharded:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
        replay.keep_rows(batch, [0] * len(batch))
        replay.step(model)
        optimizer.step()

    for _ in range(-(-config.capacity // config.batch)):
        update()

    def turn() -> None:
        for _ in range(updates):
            update()

    return turn


def _spread(model: nn.Module) -> None:
    """Shards of every block, and of what is left."""
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if type(module).__name__.endswith("Block"):
            fully_shard(module)
    fully_shard(model)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
