"""What there is to run: presets, hosts, selections and tables, with those of plug-ins.

Examples:
  sphere ls
  sphere ls --plugin examples/plugin.py
"""

import argparse
import json

from sphere_replay.cli.options import add_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere ls`."""
    add_options(parser, "--json", "--plugin")


def run(arguments: argparse.Namespace) -> int:
    """Print the names."""
    from sphere_replay.hosts import HOSTS, OPTIMIZERS
    from sphere_replay.plugging import loaded
    from sphere_replay.replay import SELECTIONS
    from sphere_replay.runs.domains import all_presets, tables
    from sphere_replay.vision.encoders import ENCODERS
    from sphere_replay.vision.models import NETWORKS

    listing = {
        "presets": all_presets(),
        "hosts": list(HOSTS),
        "selections": list(SELECTIONS),
        "networks": list(NETWORKS),
        "encoders": list(ENCODERS),
        "optimizers": list(OPTIMIZERS),
        "tables": list(tables()),
        "plug-ins": [plugin.source for plugin in loaded()],
    }
    if arguments.json:
        print(json.dumps(listing))
        return 0
    for kind, entries in listing.items():
        if entries:
            print(f"{kind:<11} {'  '.join(entries)}")
    print("\nTry: sphere show mnist --host er-ace --select sphere")
    return 0
