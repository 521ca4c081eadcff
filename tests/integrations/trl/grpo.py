"""Small GRPO trainings through the real trainer, and its loss written out by hand."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-untyped]  # has no types
from torch import Tensor
from transformers import TrainerCallback
from trl.trainer.grpo_config import GRPOConfig

from integrations.training import FILLERS, tokenizer
from language import tiny
from sphere_replay.integrations.trl import (
    GroupReplayArguments,
    SphereGRPOTrainer,
    paper_settings,
)
from sphere_replay.integrations.trl.groups import Group, SampledGroups

PROGRAMS = 4
LONGEST = 6
EPSILON = 0.2
ARGUMENTS: dict[str, Any] = {"capacity": 8, "pool": 5, "replay_batch": 3}


def problems(count: int = 8, passes: int = 2) -> Dataset:
    """`count` problems, one after the other, as often as there are passes."""
    things = ("sun", "ice", "fire", "snow")
    rows = [
        {"prompt": f"is it {FILLERS[i % 6]} {things[i % 4]}", "id": f"problem-{i}"}
        for i in range(count)
    ]
    return Dataset.from_list(rows * passes)


def parity(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """A reward that a random model gets half of the time."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def trainer(
    folder: Path,
    *,
    replay: dict[str, Any] | None = None,
    model: Any = None,
    reward: Any = parity,
    dataset: Any = None,
    base: Any = None,
    callbacks: Sequence[TrainerCallback] = (),
    embeddings: Tensor | None = None,
    words: Any = None,
    processes: int = 1,
    **options: Any,
) -> Any:
    """Two problems an update in micro-batches of one group; `base` gets no replay argument."""
    settings: dict[str, Any] = {
        **paper_settings(
            problems=2,
            generations=PROGRAMS,
            completion_length=LONGEST,
            per_device=PROGRAMS // processes,
            processes=processes,
        ),
        "output_dir": str(folder),
        "max_steps": 4,
        "learning_rate": 1e-2,
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
    }
    given: dict[str, Any] = {
        "model": tiny.qwen2() if model is None else model,
        "reward_funcs": reward,
        "args": GRPOConfig(**(settings | options)),
        "train_dataset": problems() if dataset is None else dataset,
        "processing_class": words or tokenizer(),
        "callbacks": list(callbacks),
    }
    if base is None:
        base = SphereGRPOTrainer
        given |= {"replay": GroupReplayArguments(**(ARGUMENTS | (replay or {})))}
        given |= {"embeddings": embeddings}
    return base(**given)


class Witness:
    """Notes what each update of a training sampled, drew, and trained on."""

    def __init__(self, training: Any) -> None:
        self.weights: list[dict[str, Tensor]] = []
        self.stream: list[list[Mapping[str, Tensor]]] = []
        self.candidates: list[SampledGroups | None] = []
        self.counts: list[Tensor] = []
        session = training.replay
        step, sample, draw = session.step, session._sample, session._draw

        def watched_step() -> None:
            named = training.model.state_dict()
            self.weights.append({name: value.clone() for name, value in named.items()})
            self.stream.append(list(training._buffered_inputs))
            self.candidates.append(None)
            self.counts.append(torch.empty(0))
            step()

        def watched_sample() -> SampledGroups:
            self.candidates[-1] = sampled = sample()
            assert isinstance(sampled, SampledGroups)
            return sampled

        def watched_draw(weighting: Any) -> Tensor:
            self.counts[-1] = counts = draw(weighting)
            assert isinstance(counts, Tensor)
            return counts

        session.step, session._sample, session._draw = watched_step, watched_sample, watched_draw

    def replayed(self, update: int) -> list[tuple[Group, int]]:
        """The groups an update replayed, and how often each."""
        candidates = self.candidates[update]
        if candidates is None:
            return []
        kept = candidates.mixed.nonzero()[:, 0].tolist()
        counted = zip(kept, self.counts[update].tolist(), strict=True)
        return [(candidates.own[place], count) for place, count in counted if count]


def log_probabilities(model: Any, prompt: Tensor, program: Tensor) -> Tensor:
    """log p of each token of one program, without any padding."""
    logits = model(input_ids=torch.cat([prompt, program])[None]).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float(), dim=-1).gather(1, program[:, None])[:, 0]


def surrogate(
    model: Any,
    inputs: Mapping[str, Tensor],
    *,
    pinned: Tensor | None = None,
    correction: Tensor | None = None,
) -> Tensor:
    """-Σ_k Σ_u c min(ρ A, clip(ρ, 1-ε, 1+ε) A) / (G · longest), program by program."""
    total = torch.zeros(())
    size = len(inputs["advantages"])
    for k in range(size):
        prompt = inputs["prompt_ids"][k][inputs["prompt_mask"][k].bool()]
        length = int(inputs["completion_mask"][k].sum())
        program = inputs["completion_ids"][k, :length]
        now = log_probabilities(model, prompt, program)
        advantage = float(inputs["advantages"][k])
        for u in range(length):
            old = now[u].detach() if pinned is None else pinned[k, u]
            ratio = torch.exp(now[u] - old)
            clipped = ratio.clamp(1 - EPSILON, 1 + EPSILON)
            term = torch.minimum(ratio * advantage, clipped * advantage)
            total = total - term * (1.0 if correction is None else float(correction[k, u]))
    return total / (size * LONGEST)


def corrected(trainer_log: float, sampler_log: float) -> float:
    """min(2, p0 / q)."""
    return min(2.0, math.exp(trainer_log - sampler_log))
