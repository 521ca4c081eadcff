"""Look into recorded runs: the memory as a map, and why each memory is replayed or not.

Runs record themselves with `--record N`. Several on the same stream can be compared.

Examples:
  sphere run digits --host er-ace --select sphere --record 12 && sphere inspect runs
  sphere inspect runs/digits-er-ace-sphere-noise40-seed0-1a2b3c4d --out look.html --no-open
"""

import argparse
from pathlib import Path

from sphere_replay.cli.options import add_path_option, warn_of_others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere inspect`."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="recorded run folders, or their parent"
    )
    add_path_option(parser, "--out", "inspect.html", "the page")
    parser.add_argument("--no-open", action="store_true", help="write the page, open no browser")


def run(arguments: argparse.Namespace) -> int:
    """Write the page and open it."""
    import webbrowser

    from sphere_replay.reports.report import write_inspector

    page = write_inspector(arguments.runs, arguments.out, "sphere-replay")
    print(f"{arguments.out} ({page.size / 1e6:.1f} MB)")
    warn_of_others(page.made_by)
    if not arguments.no_open:
        webbrowser.open(arguments.out.resolve().as_uri())
    return 0
