"""Instruction tuning, as runs and reports see it."""

from sphere_replay.instruct.presets import names, provenance, resolve
from sphere_replay.instruct.tables import INSTRUCT_TABLES
from sphere_replay.runs.domains import Domain, Option

DOMAIN = Domain(
    name="instruct",
    extra="instruct",
    presets=tuple(names()),
    resolve=resolve,
    provenance=provenance,
    job="sphere_replay.instruct.job",
    tables=INSTRUCT_TABLES,
    options=(
        Option("noise", "share of wrong answers (default: 0)", float, "RATE"),
        Option("order", "number of a task order, or tasks with commas (default: 0)"),
        Option("model", "a hub id or folder", metavar="ID"),
    ),
)
