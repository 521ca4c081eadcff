"""A training on two processes: trains, resumes, writes what it got."""

import sys
from pathlib import Path
from typing import Any

from integrations.pairs import in_pairs, leave, write
from integrations.training import trainer

REPLAY: dict[str, Any] = {"task_field": "task", "replay_batch": 3, "pool": 11}
OPTIONS: dict[str, Any] = {
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 2,
    "save_strategy": "steps",
    "save_steps": 3,
    "max_steps": 6,
    "optim": "sgd",
    "ddp_backend": "gloo",
}


def work(root: Path, _task: str) -> None:
    whole = trainer("causal", root / "run", replay=REPLAY, **OPTIONS)
    rank = whole.args.process_index
    assert whole.args.world_size == 2
    assert "trl" not in sys.modules  # it is slow to import, and not needed here
    whole.train()
    write(whole, root / f"whole-{rank}")
    rest = trainer("causal", root / "again", replay=REPLAY, **OPTIONS)
    rest.train(resume_from_checkpoint=str(root / "run" / "checkpoint-3"))
    write(rest, root / f"rest-{rank}")
    leave()


if __name__ == "__main__":
    in_pairs(work)
