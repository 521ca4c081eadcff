"""What replay costs a language model: an update with SPHERE against one with uniform replay.

Every figure is a ratio of medians taken in turns in one run, on one thread. Updates and scorings
are those of a tiny T5, or of any model that `sphere run` takes, at the paper's sizes.
"""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import harness, ranks
from benchmarks.harness import Benchmark, Cell, at_most, column, named, option
from benchmarks.rendering import Progress
from benchmarks.stopwatch import DividedTurn
from benchmarks.timing import milliseconds
from sphere_replay.instruct.config import InstructConfig
from sphere_replay.instruct.encoding import PromptEncoder
from sphere_replay.instruct.job import load_corpus
from sphere_replay.instruct.models import load_base
from sphere_replay.instruct.presets import resolve
from sphere_replay.instruct.trainer import InstructTrainer
from sphere_replay.language import (
    Row,
    features_and_losses,
    is_encoder_decoder,
    pad_rows,
    padding_waste,
    token_batches,
)


@dataclass(frozen=True)
class Plan(harness.Plan):
    """Which model reads which texts, and how much of them."""

    model: str = option("tiny", "tiny, smollm2, a folder or a hub id")
    data: Path | None = option(
        None, "read the 15 tasks there, not generated ones", type=Path, metavar="DIR"
    )
    capacity: int = 300
    pool: int = 512
    updates: int = 8
    """Updates of a turn: two intervals between rescorings."""
    warm_up: int = 50
    two_processes: bool = True
    """Whether to measure updates on two as well, of the tiny model on generated tasks."""
    least_rounds: int = 5
    least_seconds: float = 8.0

    @property
    def config(self) -> InstructConfig:
        """What a run at these sizes would be configured with."""
        return resolve(
            "instruct-tiny",
            select="sphere",
            model=self.model,
            corpus="classification" if self.data else "generated",
            capacity=self.capacity,
            pool=self.pool,
            warm_up=self.warm_up,
            rank=0 if self.model == "tiny" else 8,
        )


def measure(plan: Plan, progress: Progress) -> list[Cell]:
    """Time updates, on one process and on two, then scorings."""
    progress.expect(4)
    with tempfile.TemporaryDirectory() as home:
        progress("building the model")
        bench = Bench(plan, Path(home))
        progress("updates")
        cells = bench.updates()
        if plan.model == "tiny" and plan.data is None and plan.two_processes:
            progress("updates on two processes")
            cells += ranks.cells_of(plan.config, Path(home), plan.updates, plan.least_rounds)
        progress("scoring")
        return cells + bench.scoring()


class Bench:
    """Two models on the same stream, one with uniform replay and one with SPHERE."""

    def __init__(self, plan: Plan, home: Path) -> None:
        self._plan = plan
        config = plan.config
        self._sphere, self._rows = trainer_of(config, plan.data, home)
        self._uniform, _ = trainer_of(replace(config, select="uniform"), plan.data, home)

    def updates(self) -> list[Cell]:
        """SPHERE against uniform replay, and its parts."""
        er, sphere = "an update, ER", "an update, SPHERE"
        divided = DividedTurn(self._turns(self._sphere))
        contestants: dict[str, Callable[[], None]] = {
            er: self._turns(self._uniform),
            sphere: divided,
        }
        timing = self._plan.race(contestants, each=self._plan.updates)
        whole = timing.cell(sphere, er, against="ER")
        return [timing.cell(er, er, against="itself"), whole, *divided.cells(whole)]

    def scoring(self) -> list[Cell]:
        """Scoring the pool against two forwards, and the share of padding in both."""
        model, replay = model_of(self._sphere), self._sphere.replay
        slots = torch.arange(min(self._plan.pool, len(replay.memory)))
        lengths = replay.memory.lengths(slots)
        parts = token_batches(lengths, replay.settings.token_budget)
        batches = [_bare(model, replay.memory.rows(slots[part])) for part in parts]
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

        def forward_twice() -> None:
            with torch.no_grad():
                for batch in (*batches, *batches):
                    model(**batch, use_cache=False)

        model.eval()
        timing = self._plan.race(
            {
                "scoring a pool": lambda: replay.score(model, slots),
                "two forwards": forward_twice,
            }
        )
        waste = padding_waste(lengths, parts)
        return [
            timing.cell("scoring a pool", "two forwards"),
            {"figure": "padding", "against": "all tokens", "ratio": waste},
        ]

    def _turns(self, trainer: InstructTrainer) -> Callable[[], None]:
        """A call that makes the next few updates; the memory is filled first."""
        update = updating(trainer, self._rows, 16)
        for _ in range(-(-self._plan.capacity // 16)):
            update()

        def turn() -> None:
            for _ in range(self._plan.updates):
                update()

        return turn


def trainer_of(
    config: InstructConfig, data: Path | None, home: Path
) -> tuple[InstructTrainer, list[Row]]:
    """A trainer that has not begun, and the rows of its first tasks in mixed order."""
    corpus = load_corpus(config, data)
    base = load_base(config.model, corpus, home / "models", tiny=config.tiny)
    encoder = PromptEncoder.of(base, config.max_source)
    rows = [encoder.rows(task, task.train[:100]) for task in corpus.tasks.values()]
    # Task by task in turn, so that a short memory has the lengths of all tasks.
    mixed = list(itertools.chain.from_iterable(zip(*rows, strict=False)))
    return InstructTrainer(config, base, mixed, []), mixed


def updating(trainer: InstructTrainer, rows: Sequence[Row], size: int) -> Callable[[], None]:
    """A call that makes the next update, as the trainer does, which cannot be told to pause."""
    batches = itertools.cycle([rows[i : i + size] for i in range(0, len(rows), size)])
    model = model_of(trainer).train()
    collate: Any = trainer.data_collator
    optimizer: Any = trainer.optimizer

    def update() -> None:
        batch = collate(next(batches))
        torch.autograd.backward(features_and_losses(model, batch)[1].mean())
        trainer.replay.keep(batch)
        trainer.replay.step(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return update


def model_of(trainer: InstructTrainer) -> torch.nn.Module:
    """What it trains; transformers lets it be None."""
    assert trainer.model is not None
    return trainer.model


def _bare(model: torch.nn.Module, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Inputs of a plain forward over the rows."""
    batch = pad_rows(rows, 0)
    labels = batch.pop("labels")
    if is_encoder_decoder(model):
        batch["decoder_input_ids"] = labels.clamp(min=0)
    return batch


def _setting(plan: Plan) -> str:
    config = plan.config
    return f"Model: {plan.model}; {config.corpus} tasks, at most {config.max_source} tokens."


def _ratio(cell: Cell) -> str:
    digits = 3 if cell["figure"] == "padding" else 2
    return f"{cell['ratio']:.{digits}f}"


BENCHMARK = Benchmark(
    title="Instruction tuning",
    plan=Plan(),
    quick=Plan(
        capacity=64,
        pool=32,
        updates=4,
        warm_up=1,
        two_processes=False,
        least_rounds=2,
        least_seconds=0.2,
    ),
    measure=measure,
    columns={
        "what": column("figure"),
        "ms": column("seconds", by=milliseconds),
        "against": column("against"),
        "ratio": _ratio,
    },
    targets=(
        at_most(
            1.2,
            "times two bare forwards for scoring a pool",
            "ratio",
            where=named("scoring a pool"),
        ),
        at_most(0.15, "of the scored tokens are padding", "ratio", where=named("padding")),
    ),
    setting=_setting,
    legend="""
        Updates: 16 stream examples and 4 replayed ones, AdamW, from a full memory. `SPHERE`
        rescores a pool of up to 512 memories at every fourth update; its parts are in units of
        an update with uniform replay and add up to its ratio.

        2 processes: over gloo, each with 8 of the stream examples; pool and replayed examples are
        shared out. sharded: parameters, gradients and optimizer state spread by FSDP2, block by
        block. Here figures are seconds, not the processor's own time, because processes wait for
        each other; ratios are to uniform replay on the same processes.

        Scoring: losses, increments and features of the pool, against two plain forwards without
        gradients over the same batches of tokens. Padding: share of padding among these tokens.
    """,
    notes="""
        An update touches 20 examples and a rescoring the whole pool twice, so scoring is what
        SPHERE costs, and the pool and the interval are what to turn. Scoring itself is little
        more than two forwards: logits are made at the target positions alone, batches hold rows
        of about the same length, and the virtual step moves only what is trained.
    """,
)
