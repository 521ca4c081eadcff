"""One run of any domain from its configuration: folder, job, metrics."""

from pathlib import Path
from typing import Any

from sphere_replay.config import RunConfig
from sphere_replay.runs.domains import domain
from sphere_replay.runs.folder import RunFolder, identity
from sphere_replay.runs.metrics import measure
from sphere_replay.runs.records import record_of
from sphere_replay.runs.runner import Report, run_job


def run_folder(config: RunConfig, out: Path) -> RunFolder:
    """Where a run lives: readable, and unique by the first digits of its identity."""
    return RunFolder(out / f"{config.run_name}-{identity(config.to_dict())[:8]}")


def run_config(
    config: RunConfig,
    out: Path,
    *,
    data: Path | None = None,
    checkpoint_every: int = 500,
    report: Report | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Run a configuration, or finish it, or return what it gave when it was run before."""
    return run_job(
        lambda: domain(config.DOMAIN).make_job(config, data, out, progress),
        run_folder(config, out),
        config.to_dict(),
        seed=config.seed,
        checkpoint_every=checkpoint_every,
        report=report,
        finish=lambda results: results | {"metrics": measure(record_of(results))},
    )
