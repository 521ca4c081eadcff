"""Code generation with test rewards, as runs and reports see it."""

from pathlib import Path
from typing import TYPE_CHECKING

from sphere_replay.coding.config import CodingConfig
from sphere_replay.coding.presets import names, provenance, resolve
from sphere_replay.coding.tables import CODING_TABLES
from sphere_replay.runs.domains import Domain, Option

if TYPE_CHECKING:
    from sphere_replay.coding.job import CodingJob


def make_job(config: CodingConfig, data: Path | None, out: Path, progress: bool) -> "CodingJob":
    """The job of a configuration; models and verdicts are kept under `out`."""
    from sphere_replay.coding.job import run_coding_job

    return run_coding_job(config, data, out, progress)


DOMAIN = Domain(
    name="coding",
    extra="coding",
    names=names,
    config=CodingConfig,
    resolve=resolve,
    provenance=provenance,
    make_job=make_job,
    tables=CODING_TABLES,
    options=(
        Option("model", "a hub id or folder", metavar="ID"),
        Option("device", "cpu or cuda (default: the preset's)"),
    ),
)
