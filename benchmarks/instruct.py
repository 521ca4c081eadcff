"""What replay costs a language model: an update with SPHERE against one with uniform replay.

Every figure is a ratio of medians taken in turns in one run, on one thread. Updates and scorings
are those of a tiny T5, or of any model that `sphere run` takes, at the paper's sizes.
"""

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import Progress, Report, Target
from benchmarks.stopwatch import PARTS, Stopwatch, divided, fair_clock, threads
from benchmarks.timing import describe_machine, interleave, milliseconds
from sphere_replay.instruct.assembly import build_base, build_corpus, build_encoder
from sphere_replay.instruct.config import InstructConfig
from sphere_replay.instruct.learner import Learner
from sphere_replay.instruct.presets import resolve
from sphere_replay.language import (
    Row,
    is_encoder_decoder,
    pad_rows,
    padding_waste,
    token_batches,
)

SUMMARY = "time updates of a language model with and without SPHERE"

LEGEND = (
    "Updates: 16 stream examples and 4 replayed ones, AdamW, from a full memory. `SPHERE` rescores "
    "a pool of up to 512 memories at every fourth update; its parts are in units of an update with "
    "uniform replay and add up to its ratio.",
    "Scoring: losses, increments and features of the pool, against two plain forwards without "
    "gradients over the same batches of tokens. Padding: share of padding among these tokens.",
)

NOTES = (
    "An update touches 20 examples and a rescoring the whole pool twice, so scoring is what SPHERE "
    "costs, and the pool and the interval are what to turn. Scoring itself is little more than two "
    "forwards: logits are made at the target positions alone, batches hold rows of about the same "
    "length, and the virtual step moves only what is trained.",
)


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long."""

    capacity: int = 300
    pool: int = 512
    updates: int = 8
    """Updates of a turn: two intervals between rescorings."""
    warm_up: int = 50
    least_rounds: int = 5
    least_seconds: float = 8.0


QUICK = Plan(capacity=64, pool=32, updates=4, warm_up=1, least_rounds=2, least_seconds=0.2)


@dataclass(frozen=True)
class Cell:
    """One comparison: how long something takes, and how many times as long as something else."""

    figure: str
    against: str
    seconds: float
    ratio: float
    part_of: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model reads which texts."""
    parser.add_argument("--model", default="tiny", help="tiny, smollm2, a folder or a hub id")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="read the 15 tasks there, not generated ones"
    )


def measure(arguments: argparse.Namespace, progress: Progress) -> Report:
    """Time updates, then scorings."""
    plan = QUICK if arguments.quick else Plan()
    command = ["sphere", "bench", "instruct"]
    command += ["--quick"] if arguments.quick else []
    command += ["--model", arguments.model] if arguments.model != "tiny" else []
    command += ["--data", arguments.data.name] if arguments.data else []
    with threads(1), tempfile.TemporaryDirectory() as home:
        machine = describe_machine()
        progress(0, 3, "building the model")
        bench = Bench(plan, arguments.model, arguments.data, Path(home))
        progress(1, 3, "updates")
        cells = bench.updates()
        progress(2, 3, "scoring")
        scoring, waste = bench.scoring()
        cells.append(scoring)
    progress(3, 3, "done")
    return Report(
        benchmark="instruct",
        title="Instruction tuning",
        command=tuple(command),
        machine=machine,
        cells=(*(asdict(cell) for cell in cells), {"figure": "padding", "ratio": waste}),
        columns=("what", "ms", "against", "ratio"),
        rows=(
            *(
                (cell.figure, milliseconds(cell.seconds), cell.against, f"{cell.ratio:.2f}")
                for cell in cells
            ),
            ("padding", "", "all tokens", f"{waste:.3f}"),
        ),
        legend=(f"Model: {arguments.model}; {bench.texts}.", *LEGEND),
        notes=NOTES,
        targets=(
            Target("times two bare forwards for scoring a pool", "at most", 1.2, scoring.ratio),
            Target("of the scored tokens are padding", "at most", 0.15, waste),
        ),
    )


class Bench:
    """Two learners on the same stream, one with uniform replay and one with SPHERE."""

    def __init__(self, plan: Plan, model: str, data: Path | None, home: Path) -> None:
        self._plan = plan
        config = resolve(
            "instruct-tiny",
            select="sphere",
            model=model,
            corpus="classification" if data else "generated",
            capacity=plan.capacity,
            pool=plan.pool,
            warm_up=plan.warm_up,
            rank=0 if model == "tiny" else 8,
        )
        self.texts = f"{config.corpus} tasks, at most {config.max_source} tokens"
        self._sphere, self._rows = _learner(config, data, home)
        self._uniform, _ = _learner(replace(config, select="uniform"), data, home)

    def updates(self) -> list[Cell]:
        """SPHERE against uniform replay, and its parts."""
        shares: list[dict[str, float]] = []
        turn = self._turns(self._sphere)

        def divided_turn() -> None:
            watch = Stopwatch(fair_clock())
            with divided(watch):
                turn()
            whole = sum(watch.seconds.values())
            shares.append({part: seconds / whole for part, seconds in watch.seconds.items()})

        timing = interleave(
            {"ER": self._turns(self._uniform), "SPHERE": divided_turn},
            least_rounds=self._plan.least_rounds,
            least_seconds=self._plan.least_seconds,
            clock=fair_clock(),
        )
        er, sphere = (timing.seconds[name] / self._plan.updates for name in ("ER", "SPHERE"))
        cells = [Cell("an update, ER", "itself", er, 1.0)]
        cells.append(Cell("an update, SPHERE", "ER", sphere, sphere / er))
        counted = shares[1:]  # the first turn is the warm-up
        for part in PARTS:
            share = sum(turn[part] for turn in counted) / len(counted)
            cells.append(Cell(f"its {part}", "ER", share * sphere, share * sphere / er, "SPHERE"))
        return cells

    def scoring(self) -> tuple[Cell, float]:
        """Scoring the pool against two forwards, and the share of padding in both."""
        learner, replay = self._sphere, self._sphere.replay
        slots = torch.arange(min(self._plan.pool, len(replay.memory)))
        lengths = replay.memory.lengths(slots)
        parts = token_batches(lengths, replay.token_budget)
        batches = [_bare(learner.model, replay.memory.rows(slots[part])) for part in parts]
        for parameter in learner.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

        def forward_twice() -> None:
            with torch.no_grad():
                for batch in (*batches, *batches):
                    learner.model(**batch, use_cache=False)

        learner.model.eval()
        timing = interleave(
            {
                "scoring": lambda: replay.score(learner.model, slots),
                "two forwards": forward_twice,
            },
            least_rounds=self._plan.least_rounds,
            least_seconds=self._plan.least_seconds,
            clock=fair_clock(),
        )
        seconds = timing.seconds["scoring"]
        cell = Cell(
            "scoring a pool", "two forwards", seconds, seconds / timing.seconds["two forwards"]
        )
        return cell, padding_waste(lengths, parts)

    def _turns(self, learner: Learner) -> Callable[[], None]:
        """A call that makes the next few updates; the memory is filled first."""
        batches = itertools.cycle(list(_batches(self._rows, 16)))
        steps = itertools.count()

        def update() -> None:
            learner.observe(next(batches), 0, next(steps))

        for _ in range(-(-self._plan.capacity // 16)):
            update()

        def turn() -> None:
            for _ in range(self._plan.updates):
                update()

        return turn


def _learner(config: InstructConfig, data: Path | None, home: Path) -> tuple[Learner, list[Row]]:
    """A learner with nothing learned, and the rows of its first tasks in mixed order."""
    corpus = build_corpus(config, data)
    base = build_base(config, corpus, home)
    encoder = build_encoder(config, base)
    rows = [encoder.rows(task, task.train[:100]) for task in corpus.tasks.values()]
    # Task by task in turn, so that a short memory has the lengths of all tasks.
    return Learner(config, base), list(itertools.chain.from_iterable(zip(*rows, strict=False)))


def _batches(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _bare(model: torch.nn.Module, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Inputs of a plain forward over the rows."""
    batch = pad_rows(rows, 0)
    labels = batch.pop("labels")
    if is_encoder_decoder(model):
        batch["decoder_input_ids"] = labels.clamp(min=0)
    return batch
