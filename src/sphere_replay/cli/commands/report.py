"""One HTML file of results: gains, tables, curves, costs, and recorded runs to look into.

It holds everything it needs and fetches nothing: send it, keep it, open it in a browser.

Examples:
  sphere report results --out report.html
  sphere report runs --out report.html
  sphere report examples/experiment.toml --runs runs --out report.html
  sphere report results/mnist.json runs/mnist-er-ace-sphere-noise40-seed0-1a2b3c4d
"""

import argparse
from pathlib import Path

from sphere_replay.cli.options import add_options, add_path_option, warn_of_others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere report`."""
    parser.add_argument(
        "sources",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="files of `sphere sweep --save`, run folders, folders of either, experiments' files",
    )
    add_path_option(parser, "--runs", "runs", "where the runs of an experiment's file are")
    add_path_option(parser, "--out", "report.html", "the page")
    add_options(parser, "--accept-edited")
    parser.add_argument("--title", default="sphere-replay", help="the page's title")
    add_options(parser, "--plugin")


def run(arguments: argparse.Namespace) -> int:
    """Read, summarise, write."""
    from sphere_replay.reports.report import write_report

    page = write_report(
        arguments.sources,
        arguments.out,
        arguments.title,
        arguments.runs,
        accept_edited=arguments.accept_edited,
    )
    print(f"{arguments.out} ({page.size / 1e6:.1f} MB)")
    warn_of_others(page.made_by)
    return 0
