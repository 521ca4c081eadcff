"""Pictures of finished runs: paired gains first, then accuracy, forgetting, and what was replayed.

The last is the noisy lift where labels are wrong, and reward beside accuracy where programs are
rewarded. The best method is drawn thick, whichever it is.

Examples:
  sphere sweep digits --seeds 5 --out runs && sphere plot digits --runs runs --out plots
  sphere plot cifar10 --small --column 40% --runs runs --format pdf
"""

import argparse
from pathlib import Path

from sphere_replay.cli.options import add_small_option
from sphere_replay.errors import UsageError, unknown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere plot`."""
    parser.add_argument("table", metavar="TABLE", help="a table's name; `sphere ls` lists them")
    add_small_option(parser)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="run folders"
    )
    parser.add_argument("--out", type=Path, default=Path("plots"), metavar="DIR", help="pictures")
    parser.add_argument("--column", metavar="NAME", help="one column (default: the table's last)")
    parser.add_argument("--seeds", type=int, default=1000, help="at most this many seeds")
    parser.add_argument(
        "--format", choices=["png", "svg", "pdf"], default="png", help="of the files (default: png)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw what is finished."""
    from sphere_replay.reports.collection import read_finished
    from sphere_replay.reports.comparison import draw_comparison
    from sphere_replay.reports.forest import draw_forest
    from sphere_replay.reports.tables import fill
    from sphere_replay.runs.domains import table_named
    from sphere_replay.runs.table_runs import EVALUATION_SEEDS, runs_of

    table = table_named(arguments.table, small=arguments.small)
    column = arguments.column or list(table.columns)[-1]
    if column not in table.columns:
        raise UsageError(unknown("column", column, table.columns))
    runs = runs_of(table, EVALUATION_SEEDS[: arguments.seeds], columns=[column])
    finished = read_finished(runs, arguments.runs)
    if not finished:
        raise UsageError(
            f"no finished runs of {arguments.table} in {arguments.runs}; make them with: "
            f"sphere sweep {arguments.table}{' --small' * arguments.small} --out {arguments.runs}"
        )
    narrowed = table.narrowed(table.methods, [column])
    cells = fill(narrowed, finished)
    if any(cell.ci95 for cell in cells):
        print(draw_forest(narrowed, cells, arguments.out / f"gains.{arguments.format}"))
    subject = table.preset
    for path in draw_comparison(finished, arguments.out, kind=arguments.format, subject=subject):
        print(path)
    return 0
