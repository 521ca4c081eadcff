"""The tables that can be run and printed: which runs they need, and what the paper printed."""

from sphere_replay.coding.tables import CODING_TABLES
from sphere_replay.instruct.tables import INSTRUCT_TABLES
from sphere_replay.runs.table import (
    DEVELOPMENT_SEEDS,
    EVALUATION_SEEDS,
    Row,
    Table,
)
from sphere_replay.vision.tables import VISION_TABLES

__all__ = ["DEVELOPMENT_SEEDS", "EVALUATION_SEEDS", "TABLES", "Row", "Table"]

TABLES: dict[str, Table] = {
    table.spec.name: table for table in (*VISION_TABLES, *INSTRUCT_TABLES, *CODING_TABLES)
}
"""By name; a new one is one value in the file of its domain."""
