"""Trainings on two processes, sharded by FSDP2 and not: trains, resumes, writes what it got.

A task is `train`, or a kind of which one process dies in the middle of a scoring.
"""

import os
from pathlib import Path
from typing import Any

import torch
from transformers.models.t5.modeling_t5 import T5Block

from integrations import fsdp
from integrations.pairs import in_pairs, leave, write
from integrations.training import replaying_class, trainer
from language import tiny
from sphere_replay.scoring.sharding import local_parts, resharded

REPLAY: dict[str, Any] = {"replay_batch": 3, "pool": 11}
SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
KINDS = ("causal", "seq2seq", "sft", "grpo")


def make(kind: str, folder: Path, *, sharded: bool = True, **more: Any) -> Any:
    """A trainer of a kind, with what its sharded and its plain run share."""
    spread: dict[str, Any] = {"ddp_backend": "gloo", "per_device_train_batch_size": 2}
    if sharded:
        wrap = "NO_WRAP" if kind == "seq2seq" else "TRANSFORMER_BASED_WRAP"
        spread |= fsdp.options(auto_wrap_policy=wrap, **more.pop("fsdp_config", {}))
    if kind == "grpo":
        return make_grpo(folder, **(SAVING | spread | more))
    if kind == "seq2seq" and sharded:
        # accelerate puts only two of T5's tied embeddings into one unit, which torch 2.13 refuses:
        # a model that comes sharded is left as it is.
        more = {"model": fsdp.spread(tiny.t5(), T5Block), **more}
    if kind == "sft":
        more = {"model": tiny.with_lora(tiny.qwen2()), **more}
    if kind == "causal":
        more = {"gradient_accumulation_steps": 2, "optim": "sgd", **more}
    return trainer(kind, folder, replay=REPLAY, **(SAVING | spread | more))


def make_grpo(folder: Path, **options: Any) -> Any:
    from integrations.trl.grpo import trainer as grpo
    from integrations.trl.ranks import seldom

    options = {"model": tiny.with_lora(tiny.qwen2()), **options}
    options.pop("per_device_train_batch_size", None)  # GRPO has its own
    replay = {"pool": 5, "replay_batch": 3}
    return grpo(folder, replay=replay, reward=seldom, processes=2, **options)


def run(kind: str, root: Path, name: str, resume: Path | None = None, **more: Any) -> None:
    training = make(kind, root / name, **more)
    restored = watch_scoring(training)
    training.train(resume_from_checkpoint=None if resume is None else str(resume))
    assert restored, "nothing was scored"
    assert all(restored), "scoring has left a trace"
    if more.get("sharded", True):
        assert fsdp.sharded(training.model)
    write(training, root / f"{name}-{training.args.process_index}")


def watch_scoring(training: Any) -> list[bool]:
    """For every rescoring to come, whether all was as before: shards, gradients and optimizer."""
    seen: list[bool] = []
    session = training.replay
    name = scoring_of(training)
    score = getattr(session, name)

    def watched(*args: Any, **options: Any) -> Any:
        before = state(training)
        result = score(*args, **options)
        after = state(training)
        seen.append(
            len(before) == len(after)
            and all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        )
        return result

    setattr(session, name, watched)
    return seen


def scoring_of(training: Any) -> str:
    """The method that scores: that of GRPO is its own business."""
    return "_score" if hasattr(training.replay, "_score") else "score"


def state(training: Any) -> list[torch.Tensor]:
    with resharded(training.model):  # sampling may have left gathered parameters behind
        parameters = list(training.model.parameters())
    tensors = [*parameters, *(p.grad for p in parameters if p.grad is not None)]
    for parameter, moments in training.optimizer.state.items():
        tensors.append(parameter)  # of DeepSpeed: its part in full precision
        tensors += [value for value in moments.values() if isinstance(value, torch.Tensor)]
    return [part.clone() for part in local_parts(tensors)]


def die_while_others_wait(training: Any) -> None:
    name = scoring_of(training)
    score, rank = getattr(training.replay, name), training.args.process_index

    def dying(*args: Any, **options: Any) -> Any:
        if rank == 1 and training.state.global_step >= 2:
            os._exit(3)
        return score(*args, **options)

    setattr(training.replay, name, dying)
    training.train()


def work(root: Path, task: str) -> None:
    fsdp.allow_on_processors()
    if task in KINDS:
        die_while_others_wait(make(task, root / f"{task}-dying"))
        return
    for kind in KINDS:  # these first: accelerate's plugin turns FSDP on for all that follow
        run(kind, root, f"{kind}-plain", sharded=False)
    for kind in KINDS:
        run(kind, root, f"{kind}-sharded")
        run(kind, root, f"{kind}-rest", resume=root / f"{kind}-sharded" / "checkpoint-2")
    # bfloat16, and activations that are computed twice.
    run("sft", root, "sft-mixed", bf16=True, fsdp_config={"activation_checkpointing": True})
    leave()


if __name__ == "__main__":
    import integrations.trl.ranks  # noqa: F401  # slow: once for both processes

    replaying_class("sft")
    in_pairs(work)
