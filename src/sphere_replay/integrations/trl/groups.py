"""Groups of sampled programs: made, told apart and given their loss by TRL's own methods.

Nothing of TRL is copied here, so a change of its loss or its sampler is a change of ours.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from trl.trainer.utils import split_tensor_dict

from sphere_replay.integrations.trl.problems import Problems
from sphere_replay.language import Ranks

ROUNDING = 1e-6
"""An advantage below this is the rounding of a mean of equal rewards."""

_BOOKS = (
    "_metrics",
    "_logs",
    "_pending_metrics",
    "_pending_extra_logs",
    "entropy_coef",
    "_last_world_entropy",
    "_entropy_window_stats",
    "_total_train_tokens",
)


@dataclass(frozen=True, eq=False)
class Group:
    """The programs of one problem with their advantages, as TRL's loss takes them: `[G, ...]`."""

    inputs: Mapping[str, Tensor]

    @property
    def empty(self) -> bool:
        """No token counts: all programs were masked, such as truncated ones."""
        return not bool(_loss_mask(self.inputs).any())

    @property
    def mixed(self) -> bool:
        """Programs with different rewards: only these have a policy gradient."""
        return not self.empty and bool(differs(self.inputs["advantages"]).any())


def differs(advantages: Tensor) -> Tensor:
    """Which rewards are off their group's mean, beyond rounding; bool, same shape."""
    return advantages.abs() > ROUNDING


def sample_groups(
    trainer: Any, rows: Sequence[Mapping[str, Any]]
) -> tuple[list[Group], list[float]]:
    """A group for each row, and each group's share of the mean reward TRL reports.

    Every process needs the same number of rows. As many groups are sampled at once as TRL samples
    for the stream; engines that batch by themselves get all.
    """
    size = trainer.num_generations
    own_batching = trainer.use_vllm or getattr(
        trainer, "use_transformers_continuous_batching", False
    )
    at_once = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation // size
    step = len(rows) if own_batching else max(1, at_once)
    groups: list[Group] = []
    rewards: list[float] = []
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        # Copies: rollouts may write into their row.
        inputs = [dict(row) for each in part for row in repeat(each, size)]
        output = trainer._generate_and_score_completions(inputs)
        parts: list[Any] = split_tensor_dict(output, len(part))
        groups += [Group(_trimmed(inputs)) for inputs in parts]
        rewards += [trainer._metrics["train"]["reward"][-1]] * len(part)
    return groups, rewards


@dataclass(frozen=True, eq=False)
class SampledGroups:
    """Problems sampled in an update; n of them, spread over the processes."""

    problems: Tensor
    """int64 `[n]`."""
    mixed: Tensor
    """bool `[n]`: programs with different rewards."""
    empty: Tensor
    """bool `[n]`: no token counts."""
    reward: float
    """Mean over everything that was sampled."""
    own: Mapping[int, Group]
    """Groups of this process, by their place in `problems`; the others hold the rest."""
    spare: Group
    """Stands in where this process has nothing to do but others wait for it."""


def sample_candidates(
    trainer: Any, ranks: Ranks, problems: Problems, chosen: Tensor
) -> SampledGroups:
    """A group for each of the chosen problems `[n]`; all but the groups is known everywhere."""
    places = ranks.share(torch.arange(len(chosen))).tolist()
    # TRL gathers from all processes, so each must sample as many: some sample one for company.
    asked = places + [0] * (-(-len(chosen) // ranks.world) - len(places))
    rows = [trainer.train_dataset[problems.rows[int(chosen[place])]] for place in asked]
    groups, rewards = sample_groups(trainer, rows)
    own = dict(zip(places, groups, strict=False))

    def everywhere(values: list[bool]) -> Tensor:
        return ranks.spread(torch.tensor(values, dtype=torch.float32), places, len(chosen)) > 0

    return SampledGroups(
        problems=chosen,
        mixed=everywhere([group.mixed for group in own.values()]),
        empty=everywhere([group.empty for group in own.values()]),
        reward=sum(rewards) / len(rewards),
        own=own,
        spare=groups[0],
    )


def group_loss(trainer: Any, group: Group, pinned: Tensor | None = None) -> Tensor:
    """TRL's loss of the group alone, on the bare model; a scalar, differentiable.

    Nothing divides it: with `dr_grpo` it is -Σ min(ρA, clip(ρ)A) / (G · max_completion_length).

    Args:
        trainer: The trainer, inside `books_aside`.
        group: The group.
        pinned: Log-probabilities `[G, t]` in the denominator of the ratios ρ; the current ones,
            so that ρ = 1, unless given.
    """
    inputs = {k: v for k, v in group.inputs.items() if k != "old_per_token_logps"}
    if pinned is not None:
        inputs["old_per_token_logps"] = pinned
    # Losses over the number of tokens: over the group's own, whatever TRL divides them by.
    spread = trainer.accelerator.num_processes
    if trainer.model.training:
        spread *= trainer.args.steps_per_generation
    inputs["num_items_in_batch"] = _loss_mask(inputs).sum() * spread
    with trainer.compute_loss_context_manager():
        loss: Tensor = trainer._compute_loss(trainer.model, inputs)
    return loss


@contextmanager
def books_aside(trainer: Any) -> Iterator[None]:
    """Inside, metrics, logs and controllers of the stream are copies, and nothing is accumulated.

    TRL divides a training loss by the micro-batches of its window; a group is a window of its own.
    """
    kept = {name: vars(trainer)[name] for name in _BOOKS if name in vars(trainer)}
    kept["current_gradient_accumulation_steps"] = trainer.current_gradient_accumulation_steps
    seen = trainer.state.num_input_tokens_seen
    vars(trainer).update(copy.deepcopy(kept), current_gradient_accumulation_steps=1)
    try:
        yield
    finally:
        vars(trainer).update(kept)
        trainer.state.num_input_tokens_seen = seen


def _loss_mask(inputs: Mapping[str, Tensor]) -> Tensor:
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def _trimmed(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the columns that only longer groups of the same call need.

    Prompts are padded on the left, programs on the right.
    """
    prompt, program = inputs["prompt_mask"], inputs["completion_mask"]
    before = prompt.shape[1] - int(prompt.sum(1).max())
    width = program.shape[1]
    used = program.any(0).nonzero()
    until = int(used[-1]) + 1 if len(used) else 1
    trimmed = {}
    for name, values in inputs.items():
        if name in ("prompt_ids", "prompt_mask"):
            trimmed[name] = values[:, before:]
        elif values.ndim == 2 and values.shape[1] == width:
            trimmed[name] = values[:, :until]
        else:
            trimmed[name] = values
    return trimmed
