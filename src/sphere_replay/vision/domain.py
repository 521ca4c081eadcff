"""Images with noisy labels, as runs and reports see them."""

from sphere_replay.runs.domains import Domain, Option
from sphere_replay.runs.experiment import tables_in
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.presets import names, provenance, resolve

DOMAIN = Domain(
    config=VisionConfig,
    names=names,
    resolve=resolve,
    provenance=provenance,
    tables=tables_in("sphere_replay.vision"),
    options=(
        Option("noise", "share of wrong labels (default: the preset's)", float, "RATE"),
        Option("limit", "use N examples of the stream", int, "N", also_set=True),
        Option(
            "dataset",
            "with the preset's settings, hub:NAME[:CONFIG][@REVISION], any dataset of the hub with "
            "images and labels, or hub:./FOLDER",
            metavar="hub:NAME",
            also_set=True,
        ),
        Option("device", "cpu or cuda (default: the preset's)"),
    ),
)
