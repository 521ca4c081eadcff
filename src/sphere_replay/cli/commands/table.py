"""Print a table: ours beside the paper's, with paired gains and their 95% confidence intervals.

Numbers come from a file that `sphere sweep --save` wrote, or straight from run folders.

Examples:
  sphere table mnist
  sphere table cifar10 --small --costs
  sphere table digits --runs runs --seeds 5
  sphere table mnist --forest gains.svg
  sphere table mnist --latex > mnist.tex
"""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sphere_replay.cli.options import add_small_option
from sphere_replay.errors import UsageError

if TYPE_CHECKING:
    from sphere_replay.reports.render import MethodPasses
    from sphere_replay.reports.tables import Cell
    from sphere_replay.runs.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere table`."""
    parser.add_argument("table", metavar="TABLE", help="a table's name; `sphere ls` lists them")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="folder of saved results (default: results)",
    )
    add_small_option(parser)
    parser.add_argument("--runs", type=Path, metavar="DIR", help="read run folders instead")
    parser.add_argument("--seeds", type=int, default=1000, help="with --runs: how many seeds")
    parser.add_argument("--costs", action="store_true", help="show passes per stream example too")
    parser.add_argument(
        "--forest",
        type=Path,
        metavar="FILE",
        help="draw the paired gains with their intervals as well; .png, .svg or .pdf",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output only")
    parser.add_argument("--markdown", action="store_true", help="as Markdown")
    parser.add_argument("--latex", action="store_true", help="as LaTeX, in booktabs style")
    parser.add_argument("--csv", action="store_true", help="as comma-separated values, one a line")


def run(arguments: argparse.Namespace) -> int:
    """Build the cells and render them."""
    from sphere_replay.reports.collection import from_entries, load_collection, to_entries
    from sphere_replay.reports.publishing import to_csv, to_latex
    from sphere_replay.reports.render import to_json, to_markdown
    from sphere_replay.reports.tables import fill, mean_passes
    from sphere_replay.runs.domains import table_named
    from sphere_replay.runs.table_runs import DEVELOPMENT_SEEDS, EVALUATION_SEEDS, runs_of

    table = table_named(arguments.table, small=arguments.small)
    command = f"sphere sweep {arguments.table}" + (" --small" if arguments.small else "")
    if arguments.runs is not None:
        entries = to_entries(runs_of(table, EVALUATION_SEEDS[: arguments.seeds]), arguments.runs)
        place, remedy = arguments.runs, f"{command} --out {arguments.runs}"
    else:
        place = arguments.results / f"{table.name}.json"
        remedy = f"{command} --save {place}"
        entries = []
        try:
            if place.is_file():
                saved = load_collection(place)
                table = table.with_preset(saved.protocol.get("preset", table.preset))
                entries = [run for run in saved.runs if run["seed"] not in DEVELOPMENT_SEEDS]
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{place} is damaged: {error}") from error
    if not entries:
        raise UsageError(f"no results in {place}; make them with: {remedy}")
    runs = from_entries(entries)
    cells = fill(table, runs)
    passes = mean_passes(runs) if arguments.costs else {}
    if arguments.costs and not passes:
        raise UsageError(f"the runs in {place} counted no passes: leave out --costs")
    if arguments.forest is not None:
        from sphere_replay.reports.forest import draw_forest

        draw_forest(table, cells, arguments.forest)
    if arguments.json:
        print(json.dumps(to_json(table, cells, passes)))
    elif arguments.markdown:
        print(to_markdown(table, cells, passes))
    elif arguments.latex:
        print(to_latex(table, cells), end="")
    elif arguments.csv:
        print(to_csv(cells), end="")
    else:
        _print(table, cells, passes)
    return 0


def _print(table: "Table", cells: "Sequence[Cell]", passes: "MethodPasses") -> None:
    """For the width of a terminal; as plain text where there is none, or no rich."""
    from sphere_replay.reports.render import to_rich, to_text

    if not sys.stdout.isatty() or find_spec("rich") is None:
        print(to_text(table, cells, passes), end="")
        return
    from rich.console import Console

    Console().print(to_rich(table, cells, passes))
