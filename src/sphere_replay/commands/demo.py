"""One isolated spike and one coherent region: who is replayed, and why.

Example:
  sphere demo --out demo
"""

import argparse
from pathlib import Path

SUMMARY = "see the method decide on a small memory (a table and a picture)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere demo`."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for the picture"
    )


def run(arguments: argparse.Namespace) -> int:
    """Allocate, print the table, draw the picture."""
    from rich.console import Console
    from rich.table import Table

    from sphere_replay.illustration import draw_scene, spike_and_region

    scene = spike_and_region()
    allocation = scene.allocation
    raw, supported = scene.ranks(scene.increments), scene.ranks(allocation.consensus)
    order = allocation.weights.argsort(descending=True).tolist()
    spike = scene.groups.index("spike")
    shown = order[:5] + [i for i in [spike] if i not in order[:5]] + order[-2:]
    table = Table(title="60 memories, the most and the least replayed")
    for name in ("memory", "raw increment", "raw rank", "consensus", "consensus rank"):
        table.add_column(name, justify="right" if name != "memory" else "left")
    table.add_column("weight (uniform = 1)", justify="right")
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
    console = Console()
    console.print(table)
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = arguments.out / "spike-and-region.png"
    draw_scene(scene, picture)
    console.print(
        f"The spike has the largest loss increase (rank {raw[spike]}), but its neighbours do not "
        f"share it: its consensus ranks {supported[spike]}, and its weight is "
        f"{allocation.weights[spike] * len(allocation):.2f} times that of uniform replay. "
        f"The picture is in {picture}."
    )
    return 0
