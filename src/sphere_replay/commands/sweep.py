"""Run every cell of a table: all its methods, columns and seeds.

Finished runs are skipped, so the same command goes on after an interruption or with more seeds. A
run that fails is reported and stops nobody else.

Examples:
  sphere sweep digits --seeds 5 --workers 2
  sphere sweep mnist --seeds 20 --workers 2 --data DIR --save results/mnist.json
"""

import argparse
import shlex
from pathlib import Path

from sphere_replay.commands.options import add_place_options, parse_settings
from sphere_replay.config import ConfigError
from sphere_replay.usage import UsageError, unknown

SUMMARY = "run all methods, columns and seeds of a table"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere sweep`."""
    parser.add_argument("table", metavar="TABLE", help="a table's name; `sphere ls` lists them")
    parser.add_argument(
        "--seeds",
        type=int,
        default=10,
        help="evaluation seeds 0, 1, ... (10); where tasks have several orders, each seed goes "
        "through them in turn, and this counts (order, seed) pairs",
    )
    parser.add_argument("--preset", help="run the table with another preset of its domain")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these rows")
    parser.add_argument("--columns", nargs="+", metavar="NAME", help="only these columns")
    parser.add_argument(
        "--development", action="store_true", help="use development seeds (1000, 1001, ...)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write all results to one file")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    add_place_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Sweep, then save."""
    from sphere_replay.commands.progress import step_progress
    from sphere_replay.experiments.catalog import DEVELOPMENT_SEEDS, EVALUATION_SEEDS, TABLES
    from sphere_replay.experiments.collection import collect, save_collection
    from sphere_replay.experiments.sweep import Outcome, sweep

    if arguments.table not in TABLES:
        raise UsageError(unknown("table", arguments.table, TABLES))
    if arguments.seeds < 1 or arguments.workers < 1:
        raise UsageError("--seeds and --workers count from 1")
    table = TABLES[arguments.table]
    settings = parse_settings(arguments.set)
    seeds = (DEVELOPMENT_SEEDS if arguments.development else EVALUATION_SEEDS)[: arguments.seeds]
    for name, chosen, known in (
        ("method", arguments.methods, table.spec.methods),
        ("column", arguments.columns, table.columns),
    ):
        for entry in chosen or ():
            if entry not in known:
                raise UsageError(unknown(name, entry, known))
    try:
        table = table.with_preset(arguments.preset or table.preset)
        cells = table.cells(seeds, arguments.methods, arguments.columns, **settings)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    failed: list[Outcome] = []
    done = 0
    with step_progress(f"sweep {arguments.table}", hidden=arguments.quiet) as bar:

        def report(outcome: Outcome) -> None:
            nonlocal done
            done += 1
            if outcome.status == "failed":
                failed.append(outcome)
            if bar is not None:
                bar(done, len(cells), f"{len(failed)} failed" if failed else "")

        sweep(
            [cell.config for cell in cells],
            arguments.out,
            data=arguments.data,
            workers=arguments.workers,
            report=report,
        )
    runs = collect(cells, arguments.out)
    print(f"{len(runs)} of {len(cells)} runs finished in {arguments.out}")
    for outcome in failed:
        print(f"failed: {outcome.config.run_name}: {outcome.reason}")
    if arguments.save and runs:
        protocol = {"preset": table.preset, **settings}
        save_collection(arguments.save, arguments.table, _command(arguments), protocol, runs)
        print(f"saved to {arguments.save}")
    return 1 if failed else 0


def _command(arguments: argparse.Namespace) -> str:
    """The command that made the results, without what only concerns the machine it ran on."""
    words = ["sphere", "sweep", arguments.table, "--seeds", str(arguments.seeds)]
    for option in ("methods", "columns"):
        if chosen := getattr(arguments, option):
            words += [f"--{option}", *chosen]
    if arguments.preset:
        words += ["--preset", arguments.preset]
    if arguments.development:
        words.append("--development")
    for pair in arguments.set:
        words += ["--set", pair]
    return shlex.join([*words, "--save", str(arguments.save)])
