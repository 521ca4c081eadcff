"""Run one learner on one stream, and say what came out.

Stopped in any way and started again with the same command, a run goes on where it was and ends with
the same numbers to the last bit.

Examples:
  sphere run digits --host er --select sphere --noise 0.4
  sphere run mnist --host er-ace --select sphere --noise 0.4 --seed 3 --data DIR
  sphere run RUN/config.json --out again
"""

import argparse
import json
from typing import Any

from sphere_replay.cli.options import add_options, add_run_options, config_from, warn_of_others
from sphere_replay.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere run`."""
    add_run_options(parser)
    add_options(parser, "--seed", "--out", "--data", "--quiet", "--json", "--record", "--track")
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        default=500,
        metavar="STEPS",
        help="state is kept this often (default: 500; coding: every 5 updates at least), and every "
        "five minutes in any case",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run, with a progress bar unless asked otherwise."""
    from sphere_replay.runs.launch import run_config, run_folder
    from sphere_replay.runs.progress import step_progress
    from sphere_replay.runs.tracking import check_trackers

    config = config_from(arguments, seed=arguments.seed)
    if arguments.checkpoint_every < 1:
        raise UsageError("--checkpoint-every counts steps: at least 1")
    if arguments.record < 0:
        raise UsageError("--record counts rescorings: 0 or more")
    check_trackers(arguments.track)
    quiet = arguments.quiet or arguments.json
    folder = run_folder(config, arguments.out)
    finished = folder.finished
    if finished:
        warn_of_others([folder.made_by])
    with step_progress(f"{config.host} · {config.select}", hidden=quiet) as report:
        results = run_config(
            config,
            arguments.out,
            data=arguments.data,
            checkpoint_every=arguments.checkpoint_every,
            report=report,
            progress=not quiet,
            record=arguments.record,
            track=arguments.track,
        )
    if arguments.json:
        print(json.dumps({"folder": str(folder.path), **results}))
        return 0
    if finished and not quiet:
        print("This run is finished already; these are its results.")
        if arguments.record:
            print("It is not recorded anew: give another --out, or delete its folder.")
    _print_results(results)
    print(f"\nEverything is in {folder.path}")
    return 0


def _print_results(results: dict[str, Any]) -> None:
    from sphere_replay.runs.metrics import METRICS

    for name, metric in METRICS.items():
        value = results["metrics"].get(name)
        if value is not None:
            print(f"{name:<22} {100 * value:6.2f}%   {metric.formula}")
    for group in ("replay", "costs"):
        for name, value in results[group].items():
            if isinstance(value, int | float):
                print(f"{name:<28} {value:.4g}" if value % 1 else f"{name:<28} {value:.0f}")
    for reason, count in results.get("notes", {}).items():
        print(f"noted {count}x: {reason}")
