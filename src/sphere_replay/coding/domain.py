"""Code generation with test rewards, as runs and reports see it."""

from sphere_replay.coding.presets import names, provenance, resolve
from sphere_replay.coding.tables import CODING_TABLES
from sphere_replay.runs.domains import Domain, Option

DOMAIN = Domain(
    name="coding",
    extra="coding",
    presets=tuple(names()),
    resolve=resolve,
    provenance=provenance,
    job="sphere_replay.coding.job",
    tables=CODING_TABLES,
    options=(
        Option("model", "a hub id or folder", metavar="ID"),
        Option("device", "cpu or cuda (default: the preset's)"),
    ),
)
