"""A preset fully resolved: every setting a run would have, and which the paper leaves open.

The constants at the end are no settings, but a run depends on them: its config.json has them too.

Examples:
  sphere show mnist --host er-ace --select sphere --noise 0.4
  sphere show RUN/config.json
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from sphere_replay.cli.options import add_options, add_run_options, config_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere show`."""
    add_run_options(parser)
    add_options(parser, "--seed", "--json")


def run(arguments: argparse.Namespace) -> int:
    """Resolve and print."""
    from sphere_replay.runs.domains import domain

    config = config_from(arguments, seed=arguments.seed)
    provenance = domain(config.DOMAIN).provenance
    content = config.to_dict()
    notes = {name: provenance(config, name) for name in config.__dataclass_fields__}
    if arguments.json:
        print(json.dumps({"config": content, "notes": {k: v for k, v in notes.items() if v}}))
        return 0
    for line in _lines(content, notes):
        print(line)
    return 0


def _lines(content: Mapping[str, Any], notes: Mapping[str, str], indent: str = "") -> Iterator[str]:
    """A line for every entry, and those of a group below it."""
    width = 15 if not indent else 18
    for name, value in content.items():
        group = value if isinstance(value, dict) else {}
        shown = "" if group else json.dumps(value)
        note = f"   ({notes[name]})" if notes.get(name) else ""
        yield f"{indent}{name:<{width}} {shown}{note}".rstrip()
        yield from _lines(group, {}, f"{indent}  ")
