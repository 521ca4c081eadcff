"""A training on two processes, started by torchrun: trains, resumes, writes what it got."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from integrations.training import history, trainer, weights

REPLAY: dict[str, Any] = {"task_field": "task", "batch": 3, "pool": 11}
OPTIONS: dict[str, Any] = {
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 2,
    "save_strategy": "steps",
    "save_steps": 3,
    "max_steps": 6,
    "optim": "sgd",
    "ddp_backend": "gloo",
}


def write(training: Any, folder: Path) -> None:
    """Weights, replay and log of this process."""
    folder.mkdir(parents=True)
    state = training.replay.language.state_dict()
    save_file(weights(training), folder / "weights.safetensors")
    save_file(state["tensors"], folder / "replay.safetensors")
    log = [entry for entry in history(training) if "loss" in entry]
    (folder / "values.json").write_text(json.dumps({"replay": state["values"], "log": log}))


def main() -> None:
    root = Path(sys.argv[1])
    torch.set_num_threads(1)
    whole = trainer("causal", root / "run", replay=REPLAY, **OPTIONS)
    rank = whole.args.process_index
    assert whole.args.world_size == 2
    assert "trl" not in sys.modules  # it is slow to import, and not needed here
    whole.train()
    write(whole, root / f"whole-{rank}")
    rest = trainer("causal", root / "again", replay=REPLAY, **OPTIONS)
    rest.train(resume_from_checkpoint=str(root / "run" / "checkpoint-3"))
    write(rest, root / f"rest-{rank}")
    # Gloo's worker threads may need the interpreter lock to let go of their last tensors, which the
    # main thread holds while it waits for them: a group that is destroyed in order can hang.
    torch.distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
