"""GRPO with replay on two processes: trains, resumes, writes what it got."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from integrations.pairs import in_pairs, leave, write
from integrations.training import Gradients
from integrations.trl.grpo import Witness, trainer

REPLAY: dict[str, Any] = {"pool": 5, "replay_batch": 3}
OPTIONS: dict[str, Any] = {
    "processes": 2,
    "save_strategy": "steps",
    "save_steps": 3,
    "max_steps": 6,
    "ddp_backend": "gloo",
}


def seldom(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """Seldom enough that some groups have no passing program, and processes differ in how many."""
    return [float(sum(ids) % 4 == 0) for ids in completion_ids]


def write_updates(witness: Witness, gradients: Gradients, folder: Path) -> None:
    """What each update trained on here, and the gradient it ended with."""
    for update, seen in enumerate(gradients.seen):
        tensors = {f"weights.{name}": value for name, value in witness.weights[update].items()}
        tensors |= {f"gradient.{name}": value for name, value in seen.items()}
        for number, batch in enumerate(witness.stream[update]):
            tensors |= _flat(f"stream.{number}", batch)
        candidates = witness.candidates[update]
        if candidates is not None:
            kept = candidates.mixed.nonzero()[:, 0].tolist()
            for place, count in zip(kept, witness.counts[update].tolist(), strict=False):
                if count and place in candidates.own:
                    tensors |= _flat(f"replay.{place}", candidates.own[place].inputs)
                    tensors[f"replay.{place}.count"] = torch.tensor([count])
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / f"{update}.safetensors")


def _flat(prefix: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value.clone() for name, value in inputs.items() if value.ndim}


def work(root: Path, _task: str) -> None:
    gradients = Gradients()
    whole = trainer(root / "run", replay=REPLAY, reward=seldom, callbacks=[gradients], **OPTIONS)
    rank = whole.args.process_index
    assert whole.args.world_size == 2
    witness = Witness(whole)
    whole.train()
    write(whole, root / f"whole-{rank}")
    write_updates(witness, gradients, root / f"whole-{rank}")
    rest = trainer(root / "again", replay=REPLAY, reward=seldom, **OPTIONS)
    rest.train(resume_from_checkpoint=str(root / "run" / "checkpoint-3"))
    write(rest, root / f"rest-{rank}")
    leave()


if __name__ == "__main__":
    in_pairs(work)
