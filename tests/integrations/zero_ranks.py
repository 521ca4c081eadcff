"""Trainings on two processes, under ZeRO of DeepSpeed and not: trains, resumes, writes what it got.

With a second argument, one process dies in the middle of a scoring instead.
"""

import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch

from integrations.fsdp_ranks import (
    REPLAY,
    SAVING,
    die_while_others_wait,
    make_grpo,
    watch_scoring,
)
from integrations.pairs import leave, write
from integrations.training import trainer
from language import tiny

KINDS = ("causal", "seq2seq", "sft", "grpo")
STAGES = (1, 2)


def make(kind: str, folder: Path, *, stage: int = 0, bf16: bool = False, **config: Any) -> Any:
    """A trainer of a kind; without DeepSpeed at stage 0."""
    options: dict[str, Any] = {"per_device_train_batch_size": 2, "ddp_backend": "gloo", **SAVING}
    options["bf16"] = bf16
    if stage:
        options["deepspeed"] = {
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,  # SGD
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "bf16": {"enabled": "auto"},
            **config,
        }
    if kind == "grpo":
        return make_grpo(folder, **options)
    if kind == "causal":
        options |= {"gradient_accumulation_steps": 2, "optim": "sgd"}
    if kind == "sft":
        options["model"] = tiny.with_lora(tiny.qwen2())
    return trainer(kind, folder, replay=REPLAY, **options)


def run(kind: str, root: Path, name: str, resume: Path | None = None, **options: Any) -> None:
    training = make(kind, root / name, **options)
    restored = watch_scoring(training)
    training.train(resume_from_checkpoint=None if resume is None else str(resume))
    assert restored, "nothing was scored"
    assert all(restored), "scoring has left a trace"
    assert isinstance(training.model_wrapped, deepspeed.DeepSpeedEngine) == ("stage" in options)
    write(training, root / f"{name}-{training.args.process_index}")


def main() -> None:
    root = Path(sys.argv[1])
    torch.set_num_threads(1)
    # Processes then talk by gloo, and nothing is compiled.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if sys.argv[2:]:
        die_while_others_wait(make("causal", root / "dying", stage=2))
        return
    for kind in KINDS:  # these first: accelerate keeps DeepSpeed on once it was asked for
        run(kind, root, f"{kind}-plain")
    for stage in STAGES:
        for kind in KINDS:
            name = f"{kind}-{stage}"
            run(kind, root, name, stage=stage)
            run(kind, root, f"{name}-rest", resume=root / name / "checkpoint-2", stage=stage)
        low = {"enabled": True, "dtype": "bfloat16"}
        run("sft", root, f"mixed-{stage}", stage=stage, torch_autocast=low)
        run("causal", root, f"low-{stage}", stage=stage, bf16=True)
    leave()


if __name__ == "__main__":
    main()
