"""The `sphere` command: finds the module of a command, parses its arguments, runs it.

Only the command that is asked for is loaded, so the front door needs neither torch nor any extra.
Bad input ends in one line on standard error and exit code 2, never in a traceback.
"""

import argparse
import importlib
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from sphere_replay import __version__
from sphere_replay.errors import Interrupted, UsageError, UserError, unknown
from sphere_replay.extras import how_to_get

COMMANDS: dict[str, str] = {
    "ls": "list presets, hosts, selections, networks and tables",
    "show": "print every setting of a run",
    "run": "run one learner on one stream (resumes by itself)",
    "sweep": "run all methods, columns and seeds of a table",
    "table": "print a table beside the paper's",
    "compare": "set saved results side by side",
    "plot": "draw accuracy, forgetting, noisy lift and rewards of a table's runs",
    "report": "one HTML file of results, with recorded runs to look into",
    "inspect": "look into recorded runs: who is replayed, and why",
    "search": "search settings on development seeds",
    "validate": "check an experiment's file, or a run's, before hours are spent",
    "sandbox": "run untrusted programs against tests, or prove that they are confined",
    "problems": "prepare programming problems: examine, deduplicate, split",
    "demo": "a first look: the method on a toy memory, then a real comparison",
}
"""Modules in `sphere_replay.cli.commands`; a new command is one module and one line here."""


class _Parser(argparse.ArgumentParser):
    """Suggests the closest choice, and takes whole options only: abbreviations hide mistakes."""

    def __init__(self, **options: Any) -> None:
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, **options)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        raise argparse.ArgumentError(action, unknown("choice", str(value), choices))


class _Command(_Parser):
    """The parser of a command, whose module says what it takes once it is asked to parse."""

    def __init__(self, *, module: str, **options: Any) -> None:
        super().__init__(**options)
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Load the command, then parse."""
        command = importlib.import_module(self._module)
        parser = _Parser(prog=self.prog, description=command.__doc__)
        command.add_arguments(parser)
        parser.set_defaults(run=command.run)
        return parser.parse_known_args(args, namespace)


def build_parser() -> argparse.ArgumentParser:
    """The parser of `sphere` with all its commands."""
    parser = _Parser(
        prog="sphere",
        description="SPHERE: replay for continual learning that asks the neighbours first.",
        epilog="sphere COMMAND --help explains a command and shows an example.",
    )
    parser.add_argument("--version", action="version", version=f"sphere-replay {__version__}")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        dest="first_plugins",
        metavar="FILE",
        help="load your own selections, hosts, datasets, networks, encoders and tables from a "
        "Python file or a module; repeatable, also after the command, also $SPHERE_PLUGINS",
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Command
    )
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, module=f"{__name__}.commands.{name}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    # torch says so when it is loaded, and those who need numpy are told which extra brings it.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy: No module named 'numpy'")
    try:
        arguments = build_parser().parse_args(argv)
        _load_plugins(arguments)
        return int(arguments.run(arguments) or 0)
    except UserError as error:
        return _refuse(". ".join(filter(None, (str(error), error.afterword))), error.exit_code)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refuse(str(error))
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
        return _refuse(how_to_get(error.name))


def _load_plugins(arguments: argparse.Namespace) -> None:
    """For commands that ask for parts by name; the others stay as light as they are."""
    if hasattr(arguments, "plugins"):
        from sphere_replay.plugging import load_everything

        load_everything([*arguments.first_plugins, *arguments.plugins])
    elif arguments.first_plugins:
        raise UsageError(f"sphere {arguments.command} knows no plug-ins: leave out --plugin")


def _refuse(sentence: str, code: int = UserError.exit_code) -> int:
    print(f"sphere: {sentence}", file=sys.stderr)
    return code
