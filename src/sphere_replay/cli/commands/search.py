"""The paper's development search of the allocation settings in vision, on development seeds only.

Every candidate is judged by its mean improvement over the alpha = 0 control (uniform replay) on the
same seeds. Nothing here ever touches an evaluation seed. With an experiment's file in the place of
a preset, a method of it is judged against its baseline, on the file's [grid] and first measure.

Examples:
  sphere search digits --host er --noise 0.4 --seeds 3 --workers 2
  sphere search mnist --host er-ace --grid k_s=5,10 t_frac=0.25,0.5 --seeds 5
  sphere search examples/experiment.toml --method "ER + tempered" --seeds 3
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphere_replay.cli.options import (
    add_options,
    add_run_options,
    check_known,
    config_from,
    settings_from,
)
from sphere_replay.errors import UsageError

if TYPE_CHECKING:
    from sphere_replay.config import RunConfig

    Task = tuple[RunConfig, RunConfig, Mapping[str, Sequence[Any]], str]

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
    parser.add_argument(
        "--method", metavar="NAME", help="of a file (default: the first that has a baseline)"
    )
    parser.add_argument("--column", metavar="NAME", help="of a file (default: its last)")
    add_options(parser, "--out", "--data", "--quiet", "--json")


def run(arguments: argparse.Namespace) -> int:
    """Run the grid and rank it."""
    from sphere_replay.runs.progress import step_progress
    from sphere_replay.runs.search import search
    from sphere_replay.runs.table_runs import DEVELOPMENT_SEEDS

    if arguments.seeds < 1 or arguments.workers < 1:
        raise UsageError("--seeds and --workers count from 1")
    task = _of_file if Path(arguments.preset).suffix == ".toml" else _of_preset
    base, control, grid, metric = task(arguments)
    quiet = arguments.quiet or arguments.json
    with step_progress("search", hidden=quiet) as report:
        ranking = search(
            base,
            control,
            grid,
            DEVELOPMENT_SEEDS[: arguments.seeds],
            arguments.out,
            metric=metric,
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
    print(f"\n{len(ranking)} candidates, gain over the control in points of {metric} ± SE")
    return 0


def _of_preset(arguments: argparse.Namespace) -> "Task":
    """A preset with SPHERE, against its alpha = 0."""
    from sphere_replay.runs.settings import with_settings
    from sphere_replay.runs.table_runs import DEVELOPMENT_SEEDS

    if arguments.method or arguments.column:
        raise UsageError("--method and --column choose in an experiment's file, not in a preset")
    grid = parse_grid(arguments.grid) if arguments.grid else PAPER_GRID
    base = config_from(arguments, seed=DEVELOPMENT_SEEDS[0])
    if base.DOMAIN != "vision":
        raise UsageError(f"the search is for vision presets only, not for {arguments.preset}")
    if not base.select.startswith("sphere") or base.select == "sphere-no-floor":
        raise UsageError(
            f"{base.select} has no alpha to search; use sphere or another control, or write an "
            "experiment's file with a [grid]"
        )
    return base, with_settings(base, {"alpha": 0.0}), grid, "class_il"


def _of_file(arguments: argparse.Namespace) -> "Task":
    """A method of an experiment, against its baseline there."""
    from sphere_replay.runs.experiment import load_experiment
    from sphere_replay.runs.table_runs import DEVELOPMENT_SEEDS, runs_of

    table = load_experiment(arguments.preset)
    if arguments.host or arguments.select:
        raise UsageError("a file says host and selection: leave out --host and --select")
    compared = {row.method: row.baseline for row in table.rows if row.baseline is not None}
    method = arguments.method or next(iter(compared), "")
    check_known("method with a baseline", [method], compared)
    column = arguments.column or list(table.columns)[-1]
    check_known("column", [column], table.columns)
    grid = parse_grid(arguments.grid) if arguments.grid else table.grid
    if not grid:
        raise UsageError(f"{arguments.preset} has no [grid]: say there what is tried, or by --grid")
    settings = settings_from(arguments)
    base, control = (
        runs_of(table, DEVELOPMENT_SEEDS[:1], [name], [column], **settings)[0].config
        for name in (method, compared[method])
    )
    return base, control, grid, table.measures[0].metric


def parse_grid(entries: list[str]) -> dict[str, list[Any]]:
    """NAME=A,B,... with numbers; options of a part have a dot in their names."""
    grid: dict[str, list[Any]] = {}
    for entry in entries:
        name, separator, values = entry.partition("=")
        if (name not in PAPER_GRID and "." not in name) or not separator:
            raise UsageError(
                f"--grid takes NAME=A,B with NAME in {', '.join(PAPER_GRID)}, or an option such as "
                f"select.agreement: {entry!r}"
            )
        try:
            grid[name] = [json.loads(value) for value in values.split(",")]
        except json.JSONDecodeError as error:
            raise UsageError(f"--grid {entry!r}: values must be numbers") from error
    return grid
