"""Print a table: ours beside the paper's, with paired gains and their 95% confidence intervals.

Numbers come from a file that `sphere sweep --save` wrote, or straight from run folders.

Examples:
  sphere table mnist
  sphere table cifar10 --small --costs
  sphere table digits --runs runs --seeds 5 --limit 600
  sphere table examples/experiment.toml --runs runs
  sphere table mnist --columns Clean 40% --forest gains.svg
  sphere table mnist --latex > mnist.tex
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sphere_replay.cli.options import (
    add_options,
    add_path_option,
    add_table_options,
    check_known,
    table_from,
    table_words,
    warn_of_others,
)
from sphere_replay.errors import UsageError

if TYPE_CHECKING:
    from sphere_replay.reports.render import MethodPasses
    from sphere_replay.reports.tables import Cell
    from sphere_replay.runs.table import Table


_FORMS = ("json", "markdown", "brief", "latex", "csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere table`."""
    add_table_options(parser)
    add_options(parser, "--columns", "--accept-edited")
    add_path_option(parser, "--results", "results", "folder of saved results")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="read run folders instead")
    parser.add_argument("--seeds", type=int, help="with --runs: at most this many seeds")
    parser.add_argument("--costs", action="store_true", help="show passes per stream example too")
    parser.add_argument(
        "--forest",
        type=Path,
        metavar="FILE",
        help="draw the paired gains with their intervals as well; .png, .svg or .pdf",
    )
    add_options(parser, "--json")
    parser.add_argument("--markdown", action="store_true", help="as Markdown")
    parser.add_argument(
        "--brief", action="store_true", help="as Markdown, one measure with its paired gains"
    )
    parser.add_argument("--latex", action="store_true", help="as LaTeX, in booktabs style")
    parser.add_argument("--csv", action="store_true", help="as comma-separated values, one a line")


def run(arguments: argparse.Namespace) -> int:
    """Build the cells and render them."""
    from sphere_replay.reports.collection import (
        from_entries,
        load_collection,
        made_by,
        marked,
        to_entries,
        unsealed,
    )
    from sphere_replay.reports.publishing import to_csv, to_latex
    from sphere_replay.reports.render import to_brief, to_json, to_markdown
    from sphere_replay.reports.tables import fill, mean_passes
    from sphere_replay.runs.table_runs import (
        DEVELOPMENT_SEEDS,
        EVALUATION_SEEDS,
        namesakes,
        nothing_of,
        runs_of,
        seeds_in,
        seeds_of,
    )

    forms = [form for form in _FORMS if getattr(arguments, form)]
    if len(forms) > 1:
        raise UsageError(f"--{' and --'.join(forms)} are forms of one table: give one of them")
    table, settings = table_from(arguments)
    if arguments.columns:
        check_known("column", arguments.columns, table.columns)
        table = table.narrowed(table.methods, arguments.columns)
    command = shlex.join(["sphere", "sweep", *table_words(arguments)])
    seeds = seeds_of(table, arguments.seeds, development=arguments.development)
    if arguments.runs is not None:
        place = arguments.runs
        wanted = runs_of(table, seeds_in(table, seeds, place), **settings)
        table = table.telling(settings)
        entries = to_entries(wanted, place, accept_edited=arguments.accept_edited)
        if not entries:
            raise nothing_of(wanted, place, f"{command} --out {place}")
        if hint := namesakes(wanted, place):
            print(f"sphere: runs are missing in {place}; {hint}", file=sys.stderr)
    elif settings or arguments.preset:
        raise UsageError("--preset, --set, --limit and --device find run folders: give --runs DIR")
    else:
        place = arguments.results / f"{table.results or table.name}.json"
        maker = f"sphere sweep {table.results}" if table.results else command
        remedy = f"{maker} --save {place}"
        entries = []
        if place.is_file():
            saved = load_collection(place, accept_edited=arguments.accept_edited)
            table = table.telling(saved.protocol)
            table = table.with_preset(saved.protocol.get("preset", table.preset))
            # Development seeds are for choices: they are shown where they were asked for.
            shown = DEVELOPMENT_SEEDS if seeds[0] in DEVELOPMENT_SEEDS else EVALUATION_SEEDS
            entries = [run for run in saved.runs if run["seed"] in shown]
            if arguments.columns or table.results:
                entries = [
                    run
                    for run in entries
                    if run["column"] in table.columns and run["method"] in table.methods
                ]
            if old := unsealed(entries):
                print(
                    f"sphere: {old} of {len(entries)} runs in {place} have no checksum, they were "
                    "saved before there were any",
                    file=sys.stderr,
                )
        if not entries:
            raise UsageError(f"no results in {place}; make them with: {remedy}")
    warn_of_others(made_by(entries))
    runs = from_entries(entries)
    table = marked(table, runs)
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
    elif arguments.brief:
        print(to_brief(table, cells), end="")
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
