"""Plug-ins in tests: loaded for one test, forgotten after it."""

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sphere_replay import plugging
from sphere_replay.hosts import HOSTS
from sphere_replay.replay import SELECTIONS, UNLABELLED
from sphere_replay.runs.domains import PLUGGED
from sphere_replay.vision.encoders import ENCODERS
from sphere_replay.vision.models import NETWORKS
from sphere_replay.vision.presets import DATASET_SETTINGS, HOST_SETTINGS
from sphere_replay.vision.specs import DATASETS

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "plugin.py"
INSTALLED = (str(ROOT), *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))

TABLES: tuple[dict[str, Any], ...] = (
    *(SELECTIONS, HOSTS, HOST_SETTINGS, DATASETS, DATASET_SETTINGS, NETWORKS, ENCODERS),
    *(PLUGGED, plugging._loaded),
)


@contextmanager
def forgotten() -> Iterator[None]:
    """What the block registers is gone afterwards, as in a process that begins afresh."""
    before = [dict(table) for table in TABLES]
    unlabelled, path, modules = list(UNLABELLED), list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        for table, entries in zip(TABLES, before, strict=True):
            table.clear()
            table.update(entries)
        UNLABELLED[:], sys.path[:] = unlabelled, path
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and not file.startswith(INSTALLED):
                del sys.modules[name]
