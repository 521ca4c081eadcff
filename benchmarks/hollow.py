"""Do neighbours tell hollow rewards apart? Programs that pass the visible test and fail the suite.

The policy that runs of `coding-micro` begin with writes programs for training problems. Each
rewarded program gets numbers that replay could know of it, none of them from the full suite; how
well each number ranks hollow rewards above honest ones is its AUC, 0.5 being chance.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import Benchmark, Cell, column, option, whole
from benchmarks.rendering import Progress
from sphere_replay.allocation import Sphere, allocate
from sphere_replay.coding.config import CodingConfig
from sphere_replay.coding.grading import Grader, open_sandbox
from sphere_replay.coding.models import load_policy, prompt_ids
from sphere_replay.coding.presets import resolve
from sphere_replay.coding.problems import Problem
from sphere_replay.coding.programs import extract_program
from sphere_replay.coding.stages import build_stages, load_problems
from sphere_replay.geometry import center_embeddings
from sphere_replay.language import Row, features_and_losses, pad_rows, token_batches
from sphere_replay.language.models import BaseModel
from sphere_replay.language.rows import IGNORED
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.reports.statistics import paired_difference
from sphere_replay.scoring import Scores, score_batches

CHANCE = 0.5
_TOKENS = 8192


@dataclass(frozen=True)
class Plan(harness.Plan):
    """How many programs are sampled."""

    seeds: int = option(6, "samples of programs (default: 6)", type=whole(2), metavar="N")
    out: Path | None = option(
        None, "folder of policy and verdicts (default: none is kept)", type=Path, metavar="DIR"
    )
    problems: int = 20
    """Of each stage."""
    generations: int = 8
    warm_up: int = 300


@dataclass(frozen=True, eq=False)
class Programs:
    """Sampled programs `[n]`, and what is known of them."""

    rows: list[Row]
    groups: Tensor
    """The problem of each, int64 `[n]`."""
    stages: Tensor
    rewarded: Tensor
    """Bool `[n]`: passes the visible test."""
    hollow: Tensor
    """Bool `[n]`: rewarded, and fails the full suite. Only the judgement below reads it."""


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """AUC of every signal, seed by seed, then over seeds."""
    progress.expect(plan.seeds)
    with tempfile.TemporaryDirectory() as scratch:
        home = plan.out or Path(scratch)
        config = resolve(
            "coding-micro",
            train=plan.problems,
            generations=plan.generations,
            micro_batch=8 * plan.generations,
            warm_up=plan.warm_up,
        )
        base = load_policy(config, home / "models")
        stages = build_stages(load_problems(config, None), config, lambda problem: True).stages
        problems = [problem for stage in stages for problem in stage.train]
        found: list[dict[str, tuple[float, float]]] = []
        share = 0.0
        with open_sandbox(config, home / "verdicts") as sandbox:
            for seed in range(plan.seeds):
                progress(f"seed {seed}")
                programs = sample(config, base, problems, Grader(sandbox), seed)
                share += float(programs.hollow.sum() / programs.rewarded.sum()) / plan.seeds
                kept = programs.rewarded
                found.append(
                    {
                        name: (
                            auc(values[kept], programs.hollow[kept]),
                            _within(values[kept], programs.hollow[kept], programs.stages[kept]),
                        )
                        for name, values in signals(config, base, programs).items()
                    }
                )
    return [
        {
            "figure": name,
            "auc": _over_seeds([each[name][0] for each in found]),
            "within": _over_seeds([each[name][1] for each in found]),
            "hollow_share": share,
        }
        for name in found[0]
    ]


def sample(
    config: CodingConfig, base: BaseModel, problems: Sequence[Problem], judge: Grader, seed: int
) -> Programs:
    """A group of programs for every problem, judged."""
    tokenizer, length = base.tokenizer, config.max_completion
    prompts = [ids for ids in prompt_ids(problems, tokenizer) for _ in range(config.generations)]
    written: dict[int, list[int]] = {}
    base.model.eval()
    with torch.inference_mode(), globally_seeded(generator_for(seed, "hollow programs")):
        for places in token_batches([len(ids) + length for ids in prompts], _TOKENS, limit=0.0):
            ids = torch.tensor([prompts[place] for place in places.tolist()])
            answers = base.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=config.temperature,
                top_k=0,
                max_new_tokens=length,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )[:, ids.shape[1] :]
            for place, answer in zip(places.tolist(), answers.tolist(), strict=True):
                end = (
                    answer.index(tokenizer.eos_token_id)
                    if tokenizer.eos_token_id in answer
                    else length
                )
                written[place] = answer[: end + 1]
    groups = torch.arange(len(problems)).repeat_interleave(config.generations)
    texts = [
        extract_program(tokenizer.decode(written[place], skip_special_tokens=True))
        for place in range(len(prompts))
    ]
    attempts = [(problems[int(group)], text) for group, text in zip(groups, texts, strict=True)]
    rewarded = torch.tensor(judge.rewards(attempts))
    hollow = torch.zeros_like(rewarded)
    hollow[rewarded] = ~torch.tensor(
        judge.solved([attempt for attempt, kept in zip(attempts, rewarded, strict=True) if kept])
    )
    names = sorted({problem.stage for problem in problems})
    return Programs(
        rows=[_row(prompts[place], written[place]) for place in range(len(prompts))],
        groups=groups,
        stages=torch.tensor([names.index(problem.stage) for problem, _ in attempts]),
        rewarded=rewarded,
        hollow=hollow,
    )


def signals(config: CodingConfig, base: BaseModel, programs: Programs) -> Mapping[str, Tensor]:
    """What could raise suspicion against each program, `[n]`; the larger the more suspect."""
    scores = _scored(config, base, programs)
    assert scores.features is not None
    outcomes = programs.rewarded.long()
    published = allocate(scores.increments, scores.features, Sphere.instruct())

    def unbacked(features: Tensor) -> Tensor:
        recipe = Sphere.calibrated()
        found = allocate(scores.increments, features, recipe, labels=outcomes).backing
        assert found is not None
        return 1 - found

    size = config.generations
    passed = programs.rewarded.view(-1, size).double().mean(1)
    prompts = _prompt_states(base, programs)[programs.groups]
    return {
        "nothing": torch.zeros(len(outcomes)),
        "loss": scores.losses,
        "increment": scores.increments,
        "consensus of increments": published.consensus,
        "outcome not backed, programs": unbacked(scores.features),
        "outcome not backed, prompts": unbacked(prompts),
        "failures in its group": (1 - passed)[programs.groups],
    }


def _scored(config: CodingConfig, base: BaseModel, programs: Programs) -> Scores:
    """Losses, increments and mean states; the step is that of an update on the last problems."""
    model, pad = base.model, base.tokenizer.pad_token_id
    last = slice(-config.batch * config.generations, None)
    rewards = programs.rewarded[last].float().view(-1, config.generations)
    advantages = (rewards - rewards.mean(1, keepdim=True)).flatten()
    model.zero_grad()
    losses = features_and_losses(model, pad_rows(programs.rows[last], pad))[1]
    torch.autograd.backward((advantages * losses).mean())
    parts = token_batches([len(row["input_ids"]) for row in programs.rows], _TOKENS)
    scored = score_batches(
        model,
        [pad_rows([programs.rows[place] for place in part.tolist()], pad) for part in parts],
        lambda batch: features_and_losses(model, batch),
        lr=config.virtual_lr,
        optimizer=torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0),
    )
    order = torch.cat(parts).argsort()
    assert scored.features is not None
    return Scores(scored.increments[order], scored.losses[order], scored.features[order])


def _prompt_states(base: BaseModel, programs: Programs) -> Tensor:
    """Of each problem its prompt's mean state, centered, as replay of groups embeds it."""
    firsts = [
        int(place) for place in (programs.groups.diff(prepend=torch.tensor([-1])) != 0).nonzero()
    ]
    states = []
    for place in firsts:
        row = programs.rows[place]
        ids = row["input_ids"][row["labels"] == IGNORED][None]
        with torch.no_grad():
            states.append(base.model.get_decoder()(input_ids=ids)[0].mean(1))
    return center_embeddings(torch.cat(states))


def auc(values: Tensor, positive: Tensor) -> float:
    """How often a positive one has the larger value; ties count half."""
    high, low = values[positive].double(), values[~positive].double()
    if not len(high) or not len(low):
        return CHANCE
    differences = high[:, None] - low
    return float(((differences > 0).double() + 0.5 * (differences == 0)).mean())


def _within(values: Tensor, positive: Tensor, stages: Tensor) -> float:
    """Mean over the stages that have both kinds: knowing the stage is no help."""
    both = [
        auc(values[stages == stage], positive[stages == stage])
        for stage in sorted(set(stages.tolist()))
        if 0 < int(positive[stages == stage].sum()) < int((stages == stage).sum())
    ]
    return sum(both) / len(both) if both else CHANCE


def _row(prompt: Sequence[int], program: Sequence[int]) -> Row:
    ids = torch.tensor([*prompt, *program])
    labels = ids.clone()
    labels[: len(prompt)] = IGNORED
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def _over_seeds(values: Sequence[float]) -> dict[str, Any]:
    found = paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    assert found is not None
    return {"mean": found.mean, "interval": found.interval, "seeds": found.pairs}


def _shown(figure: Mapping[str, Any]) -> str:
    low, high = figure["interval"]
    return f"{figure['mean']:.3f} [{low:.3f}, {high:.3f}]"


BENCHMARK = Benchmark(
    title="Hollow rewards",
    plan=Plan(),
    quick=Plan(seeds=2, problems=8, generations=4, warm_up=60),
    measure=measure,
    columns={
        "suspect is": column("figure"),
        "AUC": column("auc", by=_shown),
        "AUC within stages": column("within", by=_shown),
        "hollow": column("hollow_share", by="{:.1%}".format),
    },
    targets=(),
    setting=lambda plan: (
        f"The micro policy before training, {4 * plan.problems} problems with {plan.generations} "
        f"programs each, {plan.seeds} samples of them."
    ),
    legend="""
        A rewarded program passes its problem's visible test; it is hollow if it fails the full
        suite, which nothing but this table asks. AUC: how often a hollow program has the larger
        value than an honest one, over all rewarded programs and, so that the stage gives nothing
        away, within stages; mean over samples and its 95% interval, Student's t. hollow: their
        share of the rewarded.

        loss: mean negative log-likelihood of the program. increment: what a virtual AdamW step of
        the policy gradient adds to it. consensus: the published kernel's mean of the increments
        around it. Not backed: how little the neighbours' outcomes (rewarded or not) agree with
        its own, by the calibrated kernel on the states of programs (averaged over their tokens)
        or of prompts. Failures: the share of its group without reward, for which no geometry is
        needed.
    """,
    notes="""
        An AUC below 0.5 is a signal too, turned around: where most programs of a problem and of
        its neighbours pass, the visible test is easily passed, by wrong programs as well. The
        policy has been taught such programs, so this need not hold for others.
    """,
)
