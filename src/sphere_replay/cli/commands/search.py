"""The paper's development search of the allocation settings in vision, on development seeds only.

Every candidate is judged by its mean improvement over the alpha = 0 control (uniform replay) on the
same seeds. Nothing here ever touches an evaluation seed.

Examples:
  sphere search digits --host er --noise 0.4 --seeds 3 --workers 2
  sphere search mnist --host er-ace --grid k_s=5,10 t_frac=0.25,0.5 --seeds 5
"""

import argparse
import json
from typing import Any

from sphere_replay.cli.options import (
    add_output_options,
    add_place_options,
    add_run_options,
    config_from,
)
from sphere_replay.errors import UsageError

PAPER_GRID: dict[str, list[Any]] = {
    "k_s": [5, 10],
    "k_t": [25, 50],
    "t_frac": [0.25, 0.5, 1.0],
    "every": [2, 4, 8],
    "alpha": [0.5, 0.7, 0.85],
}
"""The paper's grid; alpha = 0 is the control that all are compared with."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere search`."""
    add_run_options(parser, select="sphere")
    parser.add_argument("--seeds", type=int, default=3, help="development seeds (default: 3)")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument(
        "--grid", nargs="+", default=[], metavar="NAME=A,B", help="instead of the paper's grid"
    )
    add_place_options(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the grid and rank it."""
    from sphere_replay.runs.progress import step_progress
    from sphere_replay.runs.search import search
    from sphere_replay.runs.table_runs import DEVELOPMENT_SEEDS

    grid = parse_grid(arguments.grid) if arguments.grid else PAPER_GRID
    base = config_from(arguments, seed=DEVELOPMENT_SEEDS[0])
    if base.DOMAIN != "vision":
        raise UsageError(f"the search is for vision presets only, not for {arguments.preset}")
    if arguments.seeds < 1 or arguments.workers < 1:
        raise UsageError("--seeds and --workers count from 1")
    if not base.select.startswith("sphere") or base.select == "sphere-no-floor":
        raise UsageError(f"{base.select} has no alpha to search; use sphere or another control")
    quiet = arguments.quiet or arguments.json
    with step_progress("search", hidden=quiet) as report:
        ranking = search(
            base,
            grid,
            DEVELOPMENT_SEEDS[: arguments.seeds],
            arguments.out,
            data=arguments.data,
            workers=arguments.workers,
            report=report,
        )
    if arguments.json:
        print(json.dumps([entry.to_dict() for entry in ranking]))
        return 0
    for entry in ranking[:10]:
        settings = "  ".join(f"{name}={value}" for name, value in entry.settings.items())
        print(f"{100 * entry.gain:+6.2f} ± {100 * entry.standard_error:.2f}   {settings}")
    print(f"\n{len(ranking)} candidates, gain over alpha = 0 in points of Class-IL accuracy ± SE")
    return 0


def parse_grid(entries: list[str]) -> dict[str, list[Any]]:
    """NAME=A,B,... with numbers."""
    grid: dict[str, list[Any]] = {}
    for entry in entries:
        name, separator, values = entry.partition("=")
        if name not in PAPER_GRID or not separator:
            raise UsageError(
                f"--grid takes NAME=A,B with NAME in {', '.join(PAPER_GRID)}: {entry!r}"
            )
        try:
            grid[name] = [json.loads(value) for value in values.split(",")]
        except json.JSONDecodeError as error:
            raise UsageError(f"--grid {entry!r}: values must be numbers") from error
    return grid
