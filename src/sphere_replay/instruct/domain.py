"""Instruction tuning, as runs and reports see it."""

from pathlib import Path
from typing import TYPE_CHECKING

from sphere_replay.instruct.config import InstructConfig
from sphere_replay.instruct.presets import names, provenance, resolve
from sphere_replay.instruct.tables import INSTRUCT_TABLES
from sphere_replay.runs.domains import Domain, Option

if TYPE_CHECKING:
    from sphere_replay.instruct.job import InstructJob


def make_job(config: InstructConfig, data: Path | None, out: Path, progress: bool) -> "InstructJob":
    """The job of a configuration; models made for it are kept under `out/models`."""
    from sphere_replay.instruct.job import run_instruct_job

    return run_instruct_job(config, data, out, progress)


DOMAIN = Domain(
    name="instruct",
    extra="instruct",
    names=names,
    config=InstructConfig,
    resolve=resolve,
    provenance=provenance,
    make_job=make_job,
    tables=INSTRUCT_TABLES,
    options=(
        Option("order", "number of a task order, or tasks with commas (default: 0)"),
        Option("model", "a hub id or folder", metavar="ID"),
    ),
)
