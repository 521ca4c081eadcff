"""First look, in about a minute and with nothing to download.

First a memory small enough to see through: one isolated spike, one coherent region, and who is
replayed. Then the real thing: uniform replay, the paper's SPHERE and the calibrated one, while
learning handwritten digits two classes at a time with 40% of the labels wrong.

Example:
  sphere demo --out demo
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sphere_replay.cli.options import add_path_option
from sphere_replay.errors import UsageError
from sphere_replay.extras import require

if TYPE_CHECKING:
    from rich.console import Console

METHODS = ("ER", "ER + SPHERE", "ER + calibrated")
COLUMN = "40%"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere demo`."""
    add_path_option(parser, "--out", "demo", "folder for pictures and runs")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of the comparison (20)")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time (default: 2)")
    parser.add_argument("--toy-only", action="store_true", help="leave the comparison out")


def run(arguments: argparse.Namespace) -> int:
    """Show both parts."""
    require("rich", "vision")  # which the comparison needs too, further down
    from rich.console import Console

    if arguments.seeds < 2 or arguments.workers < 1:
        raise UsageError("a comparison needs at least 2 seeds and 1 worker")
    console = Console()
    arguments.out.mkdir(parents=True, exist_ok=True)
    show_toy(console, arguments.out)
    if not arguments.toy_only:
        show_comparison(console, arguments.out, arguments.seeds, arguments.workers)
    return 0


def show_toy(console: "Console", out: Path) -> None:
    """One isolated spike and one coherent region."""
    from rich.table import Table

    from sphere_replay.cli.toy import draw_scene, spike_and_region

    scene = spike_and_region()
    allocation = scene.allocation
    raw, supported = scene.ranks(scene.increments), scene.ranks(allocation.consensus)
    order = allocation.weights.argsort(descending=True).tolist()
    spike = scene.groups.index("spike")
    shown = order[:5] + [i for i in [spike] if i not in order[:5]] + order[-2:]
    table = Table(title="60 memories: the most and the least replayed, and the spike")
    table.add_column("memory")
    for name in ("raw increment", "raw rank", "consensus", "consensus rank", "weight x 60"):
        table.add_column(name, justify="right")
    for i in shown:
        table.add_row(
            f"{scene.groups[i]} #{i}",
            f"{scene.increments[i]:+.2f}",
            str(raw[i]),
            f"{allocation.consensus[i]:+.2f}",
            str(supported[i]),
            f"{allocation.weights[i] * len(allocation):.2f}",
            style="bold red" if i == spike else None,
        )
    console.print(table)
    picture = out / "spike-and-region.png"
    draw_scene(scene, picture)
    console.print(
        f"The spike has the largest loss increase (rank {raw[spike]}), but its neighbours do not "
        f"share it: its consensus ranks {supported[spike]}, and its weight is "
        f"{allocation.weights[spike] * len(allocation):.2f} times that of uniform replay. "
        f"Picture: {picture}\n"
    )


def show_comparison(console: "Console", out: Path, seeds: int, workers: int) -> None:
    """ER with three selections on noisy digits."""
    from sphere_replay.reports.collection import read_finished
    from sphere_replay.reports.comparison import draw_comparison, tell
    from sphere_replay.reports.forest import draw_forest
    from sphere_replay.reports.render import to_rich
    from sphere_replay.reports.tables import fill
    from sphere_replay.runs.domains import table_named
    from sphere_replay.runs.progress import step_progress
    from sphere_replay.runs.sweep import sweep
    from sphere_replay.runs.table_runs import EVALUATION_SEEDS, runs_of

    table = table_named("digits").narrowed(METHODS, [COLUMN])
    runs = runs_of(table, EVALUATION_SEEDS[:seeds])
    configs = [run.config for run in runs]
    with step_progress("noisy digits", hidden=False) as report:
        sweep(configs, out / "runs", workers=workers, report=report, strict=True)
    finished = read_finished(runs, out / "runs")
    cells = fill(table, finished)
    console.print(to_rich(table, cells))
    pictures = [draw_forest(table, cells, out / "gains.png"), *draw_comparison(finished, out)]
    console.print(tell(table, finished))
    console.print("Pictures: " + ", ".join(str(path) for path in pictures))
