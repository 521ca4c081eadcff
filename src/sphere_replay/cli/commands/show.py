"""A preset fully resolved: every setting a run would have, and which the paper leaves open.

Example:
  sphere show mnist --host er-ace --select sphere --noise 0.4
"""

import argparse
import json

from sphere_replay.cli.options import add_run_options, add_seed_option, config_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere show`."""
    add_run_options(parser)
    add_seed_option(parser)
    parser.add_argument("--json", action="store_true", help="machine-readable output only")


def run(arguments: argparse.Namespace) -> int:
    """Resolve and print."""
    from sphere_replay.runs.domains import domain

    config = config_from(arguments, seed=arguments.seed)
    provenance = domain(config.DOMAIN).provenance
    settings = config.in_full()
    if arguments.json:
        notes = {name: note for name in settings if (note := provenance(config, name))}
        print(json.dumps({"config": settings, "notes": notes}))
        return 0
    for name, value in settings.items():
        note = provenance(config, name)
        several = isinstance(value, dict) and value
        shown = "" if several else json.dumps(value)
        print(f"{name:<15} {shown}{f'   ({note})' if note else ''}".rstrip())
        for option, constant in value.items() if several else ():
            print(f"  {option:<18} {constant:g}")
    return 0
