"""Check an experiment's file, or the config.json of a run, before hours are spent.

Every run is resolved: unknown names, wrong types and settings that do not go together are found,
also in the [grid] of a search.
With --start each method also loads its data and takes its first steps, where nothing is kept.

Examples:
  sphere validate examples/experiment.toml
  sphere validate examples/experiment.toml --start --data DIR
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sphere_replay.cli.options import add_options, read_config
from sphere_replay.errors import UsageError, UserError

if TYPE_CHECKING:
    from sphere_replay.config import RunConfig
    from sphere_replay.runs.table import Table

FIRST_STEPS = 5
"""Enough to fill a memory, to score it and to replay from it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `sphere validate`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment (.toml) or a run")
    parser.add_argument(
        "--start", action="store_true", help=f"take {FIRST_STEPS} steps with every method"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="for --start: folder of data")
    add_options(parser, "--plugin")


def run(arguments: argparse.Namespace) -> int:
    """Read, resolve, start if asked to; say what would run."""
    from sphere_replay.runs.job import check_device

    configs, summary = _resolved(arguments.file)
    for device in {getattr(config, "device", "cpu") for config in configs.values()}:
        check_device(device)
    if arguments.start:
        for method, config in configs.items():
            _start(method, config, arguments.data)
        summary += f"; each method took its first {FIRST_STEPS} steps"
    print(summary)
    return 0


def _resolved(path: Path) -> tuple[dict[str, "RunConfig"], str]:
    """One configuration of each method, and what all of them are."""
    from sphere_replay.runs.experiment import SUFFIX, load_experiment
    from sphere_replay.runs.launch import run_folder
    from sphere_replay.runs.table_runs import runs_of, seeds_of

    if path.suffix != SUFFIX:
        config = read_config(path)
        return {config.run_name: config}, f"{path} is run {run_folder(config, Path()).path.name}"
    table = load_experiment(path)
    # One at a time, so that an error can say which of them it is about.
    configs: dict[str, RunConfig] = {}
    for row in table.rows:
        for column in table.columns:
            try:
                (found,) = runs_of(table, seeds_of(table, 1), [row.method], [column])
            except (TypeError, UserError) as error:
                raise UsageError(f"{path}: {row.method}, {column}: {error}") from error
            configs[row.method] = found.config
    _check_grid(path, table, configs)
    sizes = [len(table.rows), len(table.columns)]
    seeds: Sequence[int] = table.seeds or ()
    count = f" x {len(seeds)} seeds = {sizes[0] * sizes[1] * len(seeds)} runs" if seeds else ""
    return configs, f"{path} is sound: {sizes[0]} methods x {sizes[1]} columns{count}"


def _check_grid(path: Path, table: "Table", configs: Mapping[str, "RunConfig"]) -> None:
    """Some method that `sphere search` can judge has every point of the file's grid."""
    from sphere_replay.runs.search import candidates_of

    if not table.grid:
        return
    refused = None
    for row in table.rows:
        if row.baseline is None:
            continue
        try:
            candidates_of(configs[row.method], table.grid)
        except (TypeError, UserError) as error:
            refused = refused or f"{row.method}: {error}"
        else:
            return
    raise UsageError(f"{path}: [grid]: {refused or 'no method has a baseline to be judged by'}")


def _start(method: str, config: "RunConfig", data: Path | None) -> None:
    """A job's first steps; where the job has a loop of its own, all that comes before it."""
    from sphere_replay.runs.domains import domain
    from sphere_replay.runs.job import LoopingJob

    with tempfile.TemporaryDirectory() as folder:
        try:
            job = domain(config.DOMAIN).make_job(config, data, Path(folder), False)
            if not isinstance(job, LoopingJob):
                for step in range(min(FIRST_STEPS, len(job))):
                    job.advance(step)
        except UserError as error:
            raise UsageError(f"{method}: {error}") from error
