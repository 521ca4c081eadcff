"""The `sphere` command: finds the module of a command, parses its arguments, runs it.

Bad input ends in one line on standard error and exit code 2, never in a traceback.
"""

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Sequence

from sphere_replay import __version__
from sphere_replay.errors import Interrupted, UsageError, unknown

COMMANDS: tuple[str, ...] = (
    "ls",
    "show",
    "run",
    "sweep",
    "table",
    "compare",
    "plot",
    "search",
    "sandbox",
    "problems",
    "demo",
)
"""Modules in `sphere_replay.cli.commands`; a new command is one module and one word here."""


class _Parser(argparse.ArgumentParser):
    """Suggests the closest choice, and takes whole options only: abbreviations hide mistakes."""

    def __init__(self, **options: object) -> None:
        super().__init__(
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,  # type: ignore[arg-type]  # argparse passes its own keywords through
        )

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        raise argparse.ArgumentError(action, unknown("choice", str(value), choices))


_EXTRA_OF = {
    "pytest": "coding",
    **dict.fromkeys(("transformers", "tokenizers", "peft", "accelerate", "trl"), "instruct"),
}
"""Which extra brings a module; all others come with `vision`."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of `sphere` with all its commands."""
    parser = _Parser(
        prog="sphere",
        description="SPHERE: replay for continual learning that asks the neighbours first.",
        epilog="sphere COMMAND --help explains a command and shows an example.",
    )
    parser.add_argument("--version", action="version", version=f"sphere-replay {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for name in COMMANDS:
        module = importlib.import_module(f"sphere_replay.cli.commands.{name}")
        command = commands.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    try:
        arguments = build_parser().parse_args(argv)
        return int(arguments.run(arguments) or 0)
    except UsageError as error:
        print(f"sphere: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"sphere: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        command = shlex.join(["sphere", *(sys.argv[1:] if argv is None else argv)])
        print(f"{stop}. Nothing is lost; to go on: {command}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("stopped at once", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sphere_replay"):
            raise
        extra = _EXTRA_OF.get(error.name.partition(".")[0], "vision")
        print(
            f"sphere: this needs {error.name}: pip install 'sphere-replay[{extra}]'",
            file=sys.stderr,
        )
        return 2
