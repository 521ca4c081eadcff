"""Code generation with test rewards, as runs and reports see it."""

from sphere_replay.coding.config import CodingConfig
from sphere_replay.coding.presets import names, provenance, resolve
from sphere_replay.runs.domains import Domain, Option
from sphere_replay.runs.experiment import tables_in

DOMAIN = Domain(
    config=CodingConfig,
    names=names,
    resolve=resolve,
    provenance=provenance,
    tables=tables_in("sphere_replay.coding"),
    options=(
        Option("model", "a hub id or folder", metavar="ID"),
        Option("device", "cpu or cuda (default: the preset's)"),
    ),
)
