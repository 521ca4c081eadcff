"""Plug-ins in tests: loaded for one test, forgotten after it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sphere_replay import plugging
from sphere_replay.hosts import HOSTS
from sphere_replay.replay import SELECTIONS, UNLABELLED
from sphere_replay.runs.domains import PLUGGED
from sphere_replay.vision.encoders import ENCODERS
from sphere_replay.vision.models import NETWORKS
from sphere_replay.vision.presets import DATASET_SETTINGS, HOST_SETTINGS
from sphere_replay.vision.specs import DATASETS

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin.py"

TABLES = (SELECTIONS, HOSTS, HOST_SETTINGS, DATASETS, DATASET_SETTINGS, NETWORKS, ENCODERS, PLUGGED)


@contextmanager
def forgotten() -> Iterator[None]:
    """What the block registers is gone afterwards, as in a process that begins afresh."""
    tables = [*TABLES, plugging._loaded]
    before = [dict(table) for table in tables]  # type: ignore[call-overload]  # of many types
    unlabelled, path, modules = list(UNLABELLED), list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)
        UNLABELLED[:], sys.path[:] = unlabelled, path
        for name in set(sys.modules) - modules:
            if not name.startswith(("sphere_replay", "torch")):
                file = getattr(sys.modules[name], "__file__", None) or ""
                if "site-packages" not in file and "/lib/python" not in file:
                    del sys.modules[name]
