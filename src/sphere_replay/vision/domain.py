"""Images with noisy labels, as runs and reports see them."""

from pathlib import Path
from typing import TYPE_CHECKING

from sphere_replay.runs.domains import Domain, Option
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.presets import names, provenance, resolve
from sphere_replay.vision.tables import VISION_TABLES

if TYPE_CHECKING:
    from sphere_replay.vision.job import VisionJob


def make_job(config: VisionConfig, data: Path | None, out: Path, progress: bool) -> "VisionJob":
    """The job of a configuration; its stream is kept under `out/streams`."""
    from sphere_replay.vision.datasets import load_images
    from sphere_replay.vision.encoders import load_encoder
    from sphere_replay.vision.encoding import encode_images
    from sphere_replay.vision.job import VisionJob
    from sphere_replay.vision.stream import keep_stream

    images = load_images(config.dataset, data, progress=progress)
    if config.encoder:
        images = encode_images(images, load_encoder(config.encoder), progress=progress)
    job = VisionJob(config, images)
    keep_stream(job.stream, out)
    return job


DOMAIN = Domain(
    name="vision",
    extra="vision",
    names=names,
    config=VisionConfig,
    resolve=resolve,
    provenance=provenance,
    make_job=make_job,
    tables=VISION_TABLES,
    options=(
        Option("noise", "share of wrong labels (default: 0.4)", float, "RATE"),
        Option("limit", "use N examples of the stream", int, "N", also_set=True),
        Option("device", "cpu or cuda (default: the preset's)"),
    ),
)
