"""Run every cell of a table: all its methods, columns and seeds.

Finished runs are skipped, so the same command goes on after an interruption or with more seeds. A
run that fails is reported and stops nobody else.

Examples:
  sphere sweep digits --seeds 5 --workers 2
  sphere sweep mnist --seeds 20 --workers 2 --data DIR --save results/mnist.json
  sphere sweep cifar10 --small --columns 20% 40% --seeds 5 --save results/cifar10-small.json
"""

import argparse
import shlex
from pathlib import Path

from sphere_replay.cli.options import (
    add_domain_options,
    add_place_options,
    add_record_option,
    add_small_option,
    parse_settings,
)
from sphere_replay.errors import UsageError, unknown


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
    parser.add_argument(
        "--skip", type=int, default=0, metavar="N", help="leave out the first N of all seeds"
    )
    parser.add_argument("--preset", help="run the table with another preset of its domain")
    add_small_option(parser)
    parser.add_argument("--workers", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these rows")
    parser.add_argument("--columns", nargs="+", metavar="NAME", help="only these columns")
    parser.add_argument(
        "--development", action="store_true", help="use development seeds (1000, 1001, ...)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting"
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write all results to one file; what it has of other cells and seeds stays",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    add_record_option(parser)
    add_domain_options(parser, "device")
    add_place_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Sweep, then save."""
    from sphere_replay.reports.collection import check_extends, save_collection, to_entries
    from sphere_replay.runs.domains import table_named
    from sphere_replay.runs.progress import step_progress
    from sphere_replay.runs.sweep import sweep
    from sphere_replay.runs.table_runs import DEVELOPMENT_SEEDS, EVALUATION_SEEDS, runs_of

    table = table_named(arguments.table, small=arguments.small)
    if arguments.small and arguments.preset:
        raise UsageError("--small chooses the preset: leave out --preset")
    if arguments.seeds < 1 or arguments.workers < 1 or arguments.skip < 0:
        raise UsageError("--seeds and --workers count from 1, --skip from 0")
    if arguments.record < 0:
        raise UsageError("--record counts rescorings: 0 or more")
    settings = parse_settings(arguments.set)
    if arguments.device is not None:
        settings["device"] = arguments.device
    seeds = DEVELOPMENT_SEEDS if arguments.development else EVALUATION_SEEDS
    seeds = seeds[arguments.skip :][: arguments.seeds]
    for name, chosen, known in (
        ("method", arguments.methods, table.methods),
        ("column", arguments.columns, table.columns),
    ):
        for entry in chosen or ():
            if entry not in known:
                raise UsageError(unknown(name, entry, known))
    table = table.with_preset(arguments.preset or table.preset)
    runs = runs_of(table, seeds, arguments.methods, arguments.columns, **settings)
    protocol = {"preset": table.preset, **settings}
    if arguments.save:
        check_extends(arguments.save, table.name, protocol)
    with step_progress(f"sweep {arguments.table}", hidden=arguments.quiet) as report:
        outcomes = sweep(
            [run.config for run in runs],
            arguments.out,
            data=arguments.data,
            workers=arguments.workers,
            report=report,
            record=arguments.record,
        )
    entries = to_entries(runs, arguments.out)
    print(f"{len(entries)} of {len(runs)} runs finished in {arguments.out}")
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        print(f"failed: {outcome.config.run_name}: {outcome.reason}")
    if arguments.save and entries:
        save_collection(arguments.save, table.name, _command(arguments), protocol, entries)
        print(f"saved to {arguments.save}")
    return 1 if failed else 0


def _command(arguments: argparse.Namespace) -> str:
    """The command that made the results, without what only concerns the machine it ran on."""
    words = ["sphere", "sweep", arguments.table, "--seeds", str(arguments.seeds)]
    if arguments.skip:
        words += ["--skip", str(arguments.skip)]
    for option in ("methods", "columns"):
        if chosen := getattr(arguments, option):
            words += [f"--{option}", *chosen]
    for option in ("preset", "device"):
        if chosen := getattr(arguments, option):
            words += [f"--{option}", chosen]
    if arguments.small:
        words.append("--small")
    if arguments.development:
        words.append("--development")
    for pair in arguments.set:
        words += ["--set", pair]
    return shlex.join([*words, "--save", str(arguments.save)])
