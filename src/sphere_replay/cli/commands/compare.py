"""Set saved results side by side: one line per file, method and column.

With --baseline, every line also gets its paired gain over the host in that file, on common seeds.

Examples:
  sphere compare results/development/strength-*.json
  sphere compare results/development/refine-mnist-base.json \
    --baseline results/development/refine-mnist-hosts.json
"""

import argparse
import json
from pathlib import Path

from sphere_replay.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere compare`."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="saved by sphere sweep")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="take paired gains over it")
    parser.add_argument("--json", action="store_true", help="machine-readable output only")


def run(arguments: argparse.Namespace) -> int:
    """Summarise and print."""
    from sphere_replay.reports.collection import FinishedRun, from_entries, load_collection
    from sphere_replay.reports.side_by_side import summarise, to_markdown

    def read(path: Path) -> list[FinishedRun]:
        return from_entries(load_collection(path).runs)

    try:
        baseline = read(arguments.baseline) if arguments.baseline else None
        lines = [
            line for path in arguments.files for line in summarise(path.stem, read(path), baseline)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"these results cannot be read: {error}") from error
    if arguments.json:
        print(json.dumps([vars(line) for line in lines]))
    else:
        print(to_markdown(lines))
    return 0
