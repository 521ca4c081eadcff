"""Instruction tuning, as runs and reports see it."""

from sphere_replay.instruct.config import InstructConfig
from sphere_replay.instruct.presets import names, provenance, resolve
from sphere_replay.runs.domains import Domain, Option
from sphere_replay.runs.experiment import tables_in

DOMAIN = Domain(
    config=InstructConfig,
    names=names,
    resolve=resolve,
    provenance=provenance,
    tables=tables_in("sphere_replay.instruct"),
    options=(
        Option("noise", "share of wrong labels (default: the preset's)", float, "RATE"),
        Option("order", "number of a task order, or tasks with commas (default: 0)"),
        Option("model", "a hub id or folder", metavar="ID"),
    ),
)
