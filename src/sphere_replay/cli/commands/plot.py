"""Pictures of finished runs: paired gains first, then accuracy, forgetting, and what was replayed.

The last is the noisy lift where labels are wrong, and reward beside accuracy where programs are
rewarded. The best method is drawn thick, whichever it is.

Examples:
  sphere sweep digits --seeds 5 --out runs && sphere plot digits --runs runs --out plots
  sphere plot cifar10 --small --column 40% --runs runs --format pdf
  sphere plot examples/experiment.toml --runs runs
"""

import argparse
import shlex

from sphere_replay.cli.options import (
    add_path_option,
    add_table_options,
    check_known,
    table_from,
    table_words,
    warn_of_others,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere plot`."""
    add_table_options(parser)
    add_path_option(parser, "--runs", "runs", "run folders")
    add_path_option(parser, "--out", "plots", "pictures")
    parser.add_argument("--column", metavar="NAME", help="one column (default: the table's last)")
    parser.add_argument("--seeds", type=int, help="at most this many seeds")
    parser.add_argument(
        "--format", choices=["png", "svg", "pdf"], default="png", help="of the files (default: png)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw what is finished."""
    from sphere_replay.reports.collection import read_finished
    from sphere_replay.reports.comparison import draw_comparison
    from sphere_replay.reports.forest import draw_forest
    from sphere_replay.reports.tables import fill
    from sphere_replay.runs.launch import run_folder
    from sphere_replay.runs.table_runs import nothing_of, runs_of, seeds_in, seeds_of

    table, settings = table_from(arguments)
    column = arguments.column or list(table.columns)[-1]
    check_known("column", [column], table.columns)
    seeds = seeds_of(table, arguments.seeds, development=arguments.development)
    seeds = seeds_in(table, seeds, arguments.runs)
    runs = runs_of(table, seeds, columns=[column], **settings)
    finished = read_finished(runs, arguments.runs)
    if not finished:
        command = shlex.join(["sphere", "sweep", *table_words(arguments)])
        raise nothing_of(runs, arguments.runs, f"{command} --out {arguments.runs}")
    warn_of_others(run_folder(run.config, arguments.runs).made_by for run in runs)
    narrowed = table.narrowed(table.methods, [column])
    cells = fill(narrowed, finished)
    if any(cell.ci95 for cell in cells):
        print(draw_forest(narrowed, cells, arguments.out / f"gains.{arguments.format}"))
    subject = table.preset
    for path in draw_comparison(finished, arguments.out, kind=arguments.format, subject=subject):
        print(path)
    return 0
