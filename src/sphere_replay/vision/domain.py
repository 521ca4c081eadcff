"""Images with noisy labels, as runs and reports see them."""

from sphere_replay.runs.domains import Domain, Option
from sphere_replay.vision.presets import names, provenance, resolve
from sphere_replay.vision.tables import VISION_TABLES

DOMAIN = Domain(
    name="vision",
    extra="vision",
    presets=tuple(names()),
    resolve=resolve,
    provenance=provenance,
    job="sphere_replay.vision.job",
    tables=VISION_TABLES,
    options=(
        Option("noise", "share of wrong labels (default: 0.4)", float, "RATE"),
        Option("limit", "use N examples of the stream", int, "N", also_set=True),
        Option("device", "cpu or cuda (default: the preset's)"),
    ),
)
