r"""Set saved results side by side: one line per file, method and column.

With --baseline, every line also gets its paired gain over the host in that file, on common seeds.

Examples:
  sphere compare results/development/strength-*.json
  sphere compare results/development/refine-mnist-base.json \
    --baseline results/development/refine-mnist-hosts.json
"""

import argparse
import json
from pathlib import Path

from sphere_replay.cli.options import add_options
from sphere_replay.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere compare`."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="saved by sphere sweep")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="take paired gains over it")
    add_options(parser, "--accept-edited", "--json")


def run(arguments: argparse.Namespace) -> int:
    """Summarise and print."""
    from sphere_replay.reports.collection import FinishedRun, from_entries, load_collection
    from sphere_replay.reports.side_by_side import summarise, to_markdown
    from sphere_replay.runs.intact import blaming

    def read(path: Path) -> list[FinishedRun]:
        if not path.exists():
            raise UsageError(f"{path} does not exist; sphere sweep --save FILE makes such files")
        saved = load_collection(path, accept_edited=arguments.accept_edited)
        return from_entries(saved.runs)

    def name(path: Path, runs: list[FinishedRun]) -> str:
        return f"{path.stem} (EDITED)" if any(run.edited for run in runs) else path.stem

    baseline = read(arguments.baseline) if arguments.baseline else None
    lines = []
    for path in arguments.files:
        runs = read(path)
        with blaming(path):
            lines += summarise(name(path, runs), runs, baseline)
    if arguments.json:
        print(json.dumps([vars(line) for line in lines]))
    else:
        print(to_markdown(lines))
    return 0
