"""Run every cell of a table: all its methods, columns and seeds.

Finished runs are skipped, so the same command goes on after an interruption or with more seeds. A
run that fails is reported and stops nobody else.

Examples:
  sphere sweep digits --seeds 5 --workers 2
  sphere sweep mnist --seeds 20 --workers 2 --data DIR --save results/mnist.json
  sphere sweep cifar10 --small --columns 20% 40% --seeds 5 --save results/cifar10-small.json
  sphere sweep examples/experiment.toml --workers 2
"""

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from sphere_replay.cli.options import (
    add_options,
    add_table_options,
    check_known,
    table_from,
    table_words,
    warn_of_others,
)
from sphere_replay.errors import UsageError

DEFAULT_SEEDS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere sweep`."""
    add_table_options(parser)
    parser.add_argument(
        "--seeds",
        type=int,
        help="evaluation seeds 0, 1, ... (10, or what a file says); where tasks have several "
        "orders, each seed goes through them in turn, and this counts (order, seed) pairs",
    )
    parser.add_argument(
        "--skip", type=int, default=0, metavar="N", help="leave out the first N of all seeds"
    )
    parser.add_argument("--workers", type=int, help="processes at a time (default: 1)")
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="run on a Ray cluster, as many at a time as it has CPUs for; without an address the "
        "one that this machine belongs to. All nodes must see the folders at the same paths",
    )
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these rows")
    add_options(parser, "--columns")
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write all results to one file; what it has of other cells and seeds stays",
    )
    add_options(parser, "--quiet", "--record", "--track", "--out", "--data")


def run(arguments: argparse.Namespace) -> int:
    """Sweep, then save."""
    from sphere_replay.reports.collection import (
        check_extends,
        made_by,
        save_collection,
        to_entries,
    )
    from sphere_replay.runs.experiment import SUFFIX
    from sphere_replay.runs.progress import step_progress
    from sphere_replay.runs.settings import merged
    from sphere_replay.runs.sweep import sweep
    from sphere_replay.runs.table_runs import runs_of, seeds_of

    table, settings = table_from(arguments)
    if arguments.seeds is None and (table.seeds is None or arguments.development):
        arguments.seeds = DEFAULT_SEEDS
    if arguments.workers is not None and arguments.ray is not None:
        raise UsageError("--workers are of this machine, and --ray takes a cluster: leave out one")
    workers = 1 if arguments.workers is None else arguments.workers
    if workers < 1 or arguments.skip < 0:
        raise UsageError("--workers counts from 1, --skip from 0")
    seeds = seeds_of(table, development=arguments.development)[arguments.skip :][: arguments.seeds]
    if arguments.record < 0:
        raise UsageError("--record counts rescorings: 0 or more")
    check_known("method", arguments.methods, table.methods)
    check_known("column", arguments.columns, table.columns)
    runs = runs_of(table, seeds, arguments.methods, arguments.columns, **settings)
    # What a table by name says of its runs is known by that name; a file may change.
    own = table.settings if Path(arguments.table).suffix == SUFFIX else {}
    protocol = {"preset": table.preset, **merged(own, settings)}
    if arguments.save:
        check_extends(arguments.save, table.name, protocol)
    with (
        step_progress(f"sweep {arguments.table}", hidden=arguments.quiet) as report,
        _aside(arguments),
    ):
        outcomes = sweep(
            [run.config for run in runs],
            arguments.out,
            data=arguments.data,
            workers=workers,
            ray=arguments.ray,
            report=report,
            record=arguments.record,
            track=arguments.track,
        )
    entries = to_entries(runs, arguments.out)
    print(f"{len(entries)} of {len(runs)} runs finished in {arguments.out}")
    warn_of_others(made_by(entries))
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        print(f"failed: {outcome.config.run_name}: {outcome.reason}")
    if arguments.save and entries:
        save_collection(arguments.save, table.name, _command(arguments), protocol, entries)
        print(f"saved to {arguments.save}")
    return 1 if failed else 0


@contextmanager
def _aside(arguments: argparse.Namespace) -> Iterator[None]:
    """Ray prints pages about nodes it has lost; they go into a file beside the runs."""
    if arguments.ray is None:
        yield
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open(arguments.out / "ray.log", "a") as file, redirect_stdout(file):
        yield


def _command(arguments: argparse.Namespace) -> str:
    """The command that made the results, without what only concerns the machine it ran on."""
    words = ["sphere", "sweep", *table_words(arguments)]
    if arguments.seeds is not None:
        words += ["--seeds", str(arguments.seeds)]
    if arguments.skip:
        words += ["--skip", str(arguments.skip)]
    for option in ("methods", "columns"):
        if chosen := getattr(arguments, option):
            words += [f"--{option}", *chosen]
    return shlex.join([*words, "--save", str(arguments.save)])
