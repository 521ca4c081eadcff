"""What there is to run: presets, hosts, selections and tables.

Example:
  sphere ls
"""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere ls`."""
    parser.add_argument("--json", action="store_true", help="machine-readable output only")


def run(arguments: argparse.Namespace) -> int:
    """Print the names."""
    from sphere_replay.hosts import HOSTS
    from sphere_replay.replay import SELECTIONS
    from sphere_replay.runs.domains import all_presets, tables

    listing = {
        "presets": all_presets(),
        "hosts": list(HOSTS),
        "selections": list(SELECTIONS),
        "tables": list(tables()),
    }
    if arguments.json:
        print(json.dumps(listing))
        return 0
    for kind, entries in listing.items():
        print(f"{kind:<11} {'  '.join(entries)}")
    print("\nTry: sphere show mnist --host er-ace --select sphere")
    return 0
