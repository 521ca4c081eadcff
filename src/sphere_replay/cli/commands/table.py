"""Print a table: ours beside the paper's, with paired gains and their 95% confidence intervals.

Numbers come from a file that `sphere sweep --save` wrote, or straight from run folders.

Examples:
  sphere table mnist
  sphere table cifar10 --small --costs
  sphere table digits --runs runs --seeds 5
"""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sphere_replay.cli.options import add_small_option, table_named
from sphere_replay.errors import UsageError

if TYPE_CHECKING:
    from sphere_replay.reports.render import Costs
    from sphere_replay.reports.tables import Row, TableSpec


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
    parser.add_argument("--json", action="store_true", help="machine-readable output only")
    parser.add_argument("--markdown", action="store_true", help="as Markdown")


def run(arguments: argparse.Namespace) -> int:
    """Build the cells and render them."""
    from sphere_replay.reports.catalog import DEVELOPMENT_SEEDS, EVALUATION_SEEDS
    from sphere_replay.reports.collection import as_results, collect, load_collection
    from sphere_replay.reports.render import to_json, to_markdown
    from sphere_replay.reports.tables import build_rows, mean_passes

    table = table_named(arguments.table, small=arguments.small)
    command = f"sphere sweep {arguments.table}" + (" --small" if arguments.small else "")
    if arguments.runs is not None:
        cells = table.cells(EVALUATION_SEEDS[: arguments.seeds])
        runs = collect(cells, arguments.runs)
        place, remedy = arguments.runs, f"{command} --out {arguments.runs}"
    else:
        place = arguments.results / f"{table.spec.name}.json"
        remedy = f"{command} --save {place}"
        runs = []
        try:
            if place.is_file():
                saved = load_collection(place)
                table = table.with_preset(saved.protocol.get("preset", table.preset))
                runs = [run for run in saved.runs if run["seed"] not in DEVELOPMENT_SEEDS]
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{place} is damaged: {error}") from error
    if not runs:
        raise UsageError(f"no results in {place}; make them with: {remedy}")
    results = as_results(runs)
    rows = build_rows(table.spec, results)
    costs = mean_passes(results) if arguments.costs else {}
    if arguments.costs and not costs:
        raise UsageError(f"the runs in {place} counted no passes: leave out --costs")
    if arguments.json:
        print(json.dumps(to_json(table.spec, rows, costs)))
    elif arguments.markdown:
        print(to_markdown(table.spec, rows, costs))
    else:
        _print(table.spec, rows, costs)
    return 0


def _print(spec: "TableSpec", rows: "Sequence[Row]", costs: "Costs") -> None:
    """For the width of a terminal; as plain text where there is none, or no rich."""
    from sphere_replay.reports.render import to_rich, to_text

    if not sys.stdout.isatty() or find_spec("rich") is None:
        print(to_text(spec, rows, costs), end="")
        return
    from rich.console import Console

    Console().print(to_rich(spec, rows, costs))
