"""One vision run from its configuration: data, folder, job, metrics."""

from pathlib import Path
from typing import Any

from sphere_replay.experiments.files import write_atomically
from sphere_replay.experiments.folder import RunFolder, identity
from sphere_replay.experiments.metrics import measure
from sphere_replay.experiments.records import AccuracyRecord
from sphere_replay.experiments.runner import Report, run_job
from sphere_replay.experiments.trees import to_bytes
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.datasets import load_images
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.stream import ClassStream


def run_folder(config: VisionConfig, out: Path) -> RunFolder:
    """Where a run lives: readable, and unique by the first digits of its identity."""
    noise = f"{100 * config.noise:g}"
    name = f"{config.dataset}-{config.host}-{config.select}-noise{noise}-seed{config.seed}"
    return RunFolder(out / f"{name}-{identity(config.to_dict())[:8]}")


def run_vision(
    config: VisionConfig,
    out: Path,
    *,
    data: Path | None = None,
    checkpoint_every: int = 500,
    report: Report | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Run a configuration, or finish it, or return what it gave when it was run before."""
    folder = run_folder(config, out)

    def make_job() -> VisionJob:
        job = VisionJob(config, load_images(config.dataset, data, progress=progress))
        keep_stream(job.stream, out)
        return job

    return run_job(
        make_job,
        folder,
        config.to_dict(),
        seed=config.seed,
        checkpoint_every=checkpoint_every,
        report=report,
        finish=_with_metrics,
    )


def keep_stream(stream: ClassStream, out: Path) -> Path:
    """Save labels and order as data, once for all runs that share them; named by their digest.

    The digest is in each run's manifest. `ClassStream.from_tensors` reads the file back.
    """
    path = out / "streams" / f"{stream.digest}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_bytes(stream.to_tensors()))
    return path


def _with_metrics(results: dict[str, Any]) -> dict[str, Any]:
    return results | {"metrics": measure(AccuracyRecord.from_dict(results["accuracy"]))}
